-- Subscriptions as workers of these definitions have to know them. One that was deleted is missing.
select :"schema".opened(g.id, g.number)::text
from unnest(%(ids)s::bigint[], %(numbers)s::integer[]) g(id, number)
join :"schema".subscriptions s on s.id = g.id
