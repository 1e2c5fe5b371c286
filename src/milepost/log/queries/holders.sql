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
