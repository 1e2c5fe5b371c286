-- name: selections
-- What subscriptions select: the one of a name, or those of these numbers, or all.
select s.id, s."group", s.name, d.selects
from :"schema".subscriptions s
join :"schema".definitions d on d.subscription = s.id and d.number = s.definition
where (%(name)s::text is null or s.id = :"schema".named(%(group)s::text, %(name)s::text))
  and (%(ids)s::bigint[] is null or s.id = any (%(ids)s::bigint[]))


-- name: definition
-- What a subscription selects and how it orders, what operators set beside that, since when it is there, and how much a
-- replay of it has in all.
select d.number, d.selects, d.orders, d.program, d.since, s.created, s.limits::text,
       (select coalesce(sum(r.ranges[n + 1] - r.ranges[n] + 1), 0)::bigint
        from :"schema".replays r, generate_series(1, cardinality(r.ranges), 2) n
        where r.subscription = s.id)
from :"schema".subscriptions s
join :"schema".definitions d on d.subscription = s.id and d.number = s.definition
where s.id = :"schema".named(%(group)s::text, %(name)s::text)


-- name: workers
-- Who works, or did and has not left: processes with handlers, and those with consumers.
select w.id, w."group", w.program, w.beat, date_part('epoch', :"schema".clock() - w.beat), date_part('epoch', w.lease),
       (select count(*) from :"schema".lanes l where l.owner = w.id),
       (select coalesce(sum(a.consumers), 0) from :"schema".attending a
        where a.worker = w.id and a.until >= :"schema".clock())
from :"schema".workers w
order by w."group", w.id
limit %(most)s::bigint
