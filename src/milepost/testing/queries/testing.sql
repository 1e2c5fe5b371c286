-- name: advance
-- Moves the clock, and with it the last beat of workers of this process. Whoever sleeps by the old time wakes up.
with clock as (update :"schema".moved m set by = m.by + %(by)s),
     alive as (update :"schema".workers w set beat = w.beat + %(by)s where starts_with(w.id, %(own)s))
select pg_notify(:'schema', ''), pg_notify(:'schema', 'act')


-- name: blockers
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


-- name: create
create schema :"schema"


-- name: cut
-- What a test left open would keep its schema from being dropped.
select pg_terminate_backend(a.pid) from pg_stat_activity a where a.application_name = :'schema'


-- name: drop
drop schema if exists :"schema" cascade


-- name: end
select pg_terminate_backend(%(pid)s)


-- name: look_again
-- Workers look for what is due.
select :"schema".act(s.id) from :"schema".subscriptions s


-- name: prepare
-- The schema's clock can be moved from now on.
create table :"schema".moved (by interval not null);
insert into :"schema".moved values ('0');
create or replace function :"schema".clock() returns timestamptz
language sql volatile parallel safe
as $$ select clock_timestamp() + (select m.by from :"schema".moved m) $$;
