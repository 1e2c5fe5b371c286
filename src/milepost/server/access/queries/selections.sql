-- What subscriptions select: the one of a name, or those of these numbers, or all.
select s.id, s."group", s.name, d.selects
from :"schema".subscriptions s
join :"schema".definitions d on d.subscription = s.id and d.number = s.definition
where (%(name)s::text is null or s.id = :"schema".named(%(group)s::text, %(name)s::text))
  and (%(ids)s::bigint[] is null or s.id = any (%(ids)s::bigint[]))
