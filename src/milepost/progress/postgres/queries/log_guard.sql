-- name: follow
-- The first program says which log is followed; later ones remove what is old, but for the newest of that.
with passed as (
    delete from :"schema".followed f
    where f.horizon in (
        select g.horizon from :"schema".followed g
        where g.horizon < (
            select max(n.horizon) from :"schema".followed n where n.at < :"schema".clock() - interval '10 minutes')
        for update skip locked)
)
insert into :"schema".followed (horizon, log)
select 0, %(log)s::uuid
where not exists (select from :"schema".followed)
on conflict do nothing


-- name: follow_on
-- The log has come further. It need not be on disk before the cursor that follows it is: that one's commit brings it
-- there. A few of those that are old go, but for the newest of them; what others are just removing is left to them.
with soon as materialized (
    select set_config('synchronous_commit', 'off', true)
), passed as (
    delete from :"schema".followed f
    where f.horizon in (
        select g.horizon from :"schema".followed g
        where g.horizon < (
            select max(n.horizon) from :"schema".followed n where n.at < :"schema".clock() - interval '10 minutes')
        order by g.horizon
        limit 20
        for update skip locked)
)
insert into :"schema".followed (horizon, log, "position", id, "time")
select %(horizon)s::bigint, %(log)s::uuid, %(position)s::bigint, %(id)s::uuid, %(time)s::timestamptz
from soon
on conflict do nothing


-- name: followed
-- All that is remembered of the log, the newest first: what it had come to, and its newest message then.
select f.log, f.horizon, f."position", f.id, f."time", (select l.token from :"schema".server_life l)
from :"schema".followed f
order by f.horizon desc


-- name: unfollowed
-- Who serves the consumers of a subscription, and does not follow yet what people have changed up to then. Whoever takes
-- its lane later knows it.
select v.worker
from :"schema".serving v
where v.subscription = %(subscription)s::bigint and 0 = any (v.lanes) and :"schema".lives(v.worker, v.until)
  and not exists (
      select from :"schema".attending a
      where a.subscription = v.subscription and a.worker = v.worker and a.acted >= %(acted)s::bigint)


-- name: rewind
select :"schema".rewind(%(survived)s::bigint, %(log)s::uuid, %(id)s::uuid, %(time)s::timestamptz)
