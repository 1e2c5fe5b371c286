-- What a subscription selects and how it orders, what operators set beside that, since when it is there, and how much a
-- replay of it has in all.
select d.number, d.selects, d.orders, d.program, d.since, s.created, s.limits::text,
       (select coalesce(sum(r.ranges[n + 1] - r.ranges[n] + 1), 0)::bigint
        from :"schema".replays r, generate_series(1, cardinality(r.ranges), 2) n
        where r.subscription = s.id)
from :"schema".subscriptions s
join :"schema".definitions d on d.subscription = s.id and d.number = s.definition
where s.id = :"schema".named(%(group)s::text, %(name)s::text)
