-- Where lanes were each time that somebody took them, or put them there, the newest first. Those revisions are kept for
-- a day at least.
select g.subscription, g.lane, c.revision, c.taken, c."position", c.ahead
from unnest(
    (select %(subscriptions)s::bigint[]), (select %(lanes)s::integer[]), (select %(revisions)s::bigint[])
) as g(subscription, lane, revision)
cross join lateral (
    select c.taken, c."position", c.ahead, c.revision
    from :"schema".cursors c
    where c.subscription = g.subscription and c.lane = g.lane and c.revision <= g.revision and c.taken is not null
    order by c.revision desc
    limit %(most)s::bigint
) c
order by g.subscription, g.lane, c.revision desc
