-- Where lanes were each time that somebody took them, or put them there, the newest first. Those revisions are kept for
-- a day at least. For one that was created for consumers also where its owner went over to another definition.
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
union all
select d.subscription, 0, 9223372036854775807, d.since, d.positions[1],
       array(select jsonb_array_elements_text(d.aheads -> 0))::bigint[]
from :"schema".definitions d
join :"schema".subscriptions s on s.id = d.subscription and not s.in_code
where d.subscription = any (%(subscriptions)s::bigint[]) and d.number > 1
order by 1, 2, 4 desc, 3 desc
