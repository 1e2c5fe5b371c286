-- Who keeps a backend waiting, for people. A prepared transaction has no process, but a name.
select b.pid, null as gid, coalesce(a.application_name, ''), coalesce(a.usename::text, ''), coalesce(a.state, ''),
       extract(epoch from clock_timestamp() - a.xact_start)::float8, coalesce(a.query, '')
from (select distinct unnest(pg_blocking_pids(%(pid)s)) as pid) b
left join pg_stat_activity a on a.pid = b.pid
where b.pid <> 0
union all
select distinct null::integer, x.gid, '', x.owner::text, 'prepared',
       extract(epoch from clock_timestamp() - x.prepared)::float8, ''
from pg_locks w
join pg_locks l on l.granted and l.pid is null
    and (l.locktype, l.database, l.relation, l.transactionid, l.classid, l.objid, l.objsubid)
        is not distinct from (w.locktype, w.database, w.relation, w.transactionid, w.classid, w.objid, w.objsubid)
join pg_locks t on t.locktype = 'transactionid' and t.virtualtransaction = l.virtualtransaction
join pg_prepared_xacts x on x.transaction = t.transactionid
where w.pid = %(pid)s and not w.granted
