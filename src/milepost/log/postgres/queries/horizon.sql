-- name: sample_drawn
-- The first half of a sample: what has been drawn by now. The set of lockers is read after it, in a statement of its own.
select case when q.is_called then q.last_value else 0 end,
       (select l.token from :"schema".server_life l),
       (select l.base from :"schema".server_life l),
       pg_postmaster_start_time(),
       exists (select from :"schema".sleeps s where s.until >= (select :"schema".clock() + %(cover)s::interval))
from :"schema".messages_position_seq q


-- name: sample_lockers
-- The second half of a sample: the transactions that may have drawn a position and not ended.
select l.virtualtransaction
from pg_locks l
where l.locktype = 'relation'
  and l.mode = 'RowExclusiveLock'
  and l.granted
  and l.database = (select d.oid from pg_database d where d.datname = current_database())
  and l.relation = to_regclass(format('%%I.messages', :'schema'::text))


-- name: begin_life
-- Before anybody can store a horizon of the new life, which needs its token.
select :"schema".life()


-- name: current_life
select l.token from :"schema".server_life l


-- name: run_above
-- The end of the run of visible positions directly above one: nothing can appear within it.
select coalesce(max(m."position"), %(low)s)
from (
    select m."position", row_number() over (order by m."position") as place
    from :"schema".messages m
    where m."position" > %(low)s and m."position" <= %(low)s + %(span)s
) m
where m."position" = %(low)s + m.place


-- name: store_horizon
-- Upwards only, and not into another life of the server, where the same positions may be other messages.
update :"schema".horizon h
set "position" = %(position)s
where h."position" < %(position)s
  and exists (select from :"schema".server_life l where l.token = %(life)s)


-- name: stored_horizon
select h."position" from :"schema".horizon h


-- name: holders
-- Who they are, for people.
select l.virtualtransaction,
       l.pid,
       coalesce(a.application_name, ''),
       coalesce(a.state, case when l.pid is null then 'prepared' else 'in a state this role may not see' end),
       extract(epoch from clock_timestamp() - coalesce(a.xact_start, x.prepared))::float8,
       x.gid
from pg_locks l
left join pg_stat_activity a on a.pid = l.pid
left join pg_locks t on l.pid is null and t.locktype = 'transactionid' and t.virtualtransaction = l.virtualtransaction
left join pg_prepared_xacts x on x.transaction = t.transactionid
where l.locktype = 'relation'
  and l.mode = 'RowExclusiveLock'
  and l.granted
  and l.database = (select d.oid from pg_database d where d.datname = current_database())
  and l.relation = to_regclass(format('%%I.messages', :'schema'::text))
order by 5 desc nulls last


-- name: mark_sleep
-- Makes sure that appends find a mark.
select :"schema".mark_sleep(%(mark)s::interval, %(cover)s::interval)
