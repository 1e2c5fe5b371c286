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
