-- Who holds which of these locks, and which process is this one.
select k.key, l.pid, l.pid = pg_backend_pid()
from unnest(%(keys)s::bigint[]) as k(key)
join pg_locks l
  on l.classid = ((k.key >> 32) & 4294967295)::oid and l.objid = (k.key & 4294967295)::oid
where l.locktype = 'advisory' and l.objsubid = 1 and l.granted
  and l.database = (select d.oid from pg_database d where d.datname = current_database())
