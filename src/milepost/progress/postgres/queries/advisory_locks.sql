-- name: advisory_holders
-- Who holds which of these locks, and which process is this one.
select k.key, l.pid, l.pid = pg_backend_pid()
from unnest(%(keys)s::bigint[]) as k(key)
join pg_locks l
  on l.classid = ((k.key >> 32) & 4294967295)::oid and l.objid = (k.key & 4294967295)::oid
where l.locktype = 'advisory' and l.objsubid = 1 and l.granted
  and l.database = (select d.oid from pg_database d where d.datname = current_database())


-- name: advisory_lock
select k.key, pg_try_advisory_lock(k.key) from unnest(%(keys)s::bigint[]) as k(key)


-- name: advisory_lock_shared
select pg_advisory_lock_shared(k.key) from unnest(%(keys)s::bigint[]) as k(key)


-- name: advisory_unlock
select pg_advisory_unlock(k.key) from unnest(%(keys)s::bigint[]) as k(key)


-- name: advisory_unlock_all
select pg_advisory_unlock_all()


-- name: advisory_unlock_shared
select pg_advisory_unlock_shared(k.key) from unnest(%(keys)s::bigint[]) as k(key)
