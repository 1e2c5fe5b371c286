-- Nothing for a worker whose definition is not the newest: it would pass what only a newer program handles; and nothing
-- for one that does not know what people have done meanwhile. The lock keeps both out while lanes are taken.
with current as materialized (
    select s.definition, s.acted from :"schema".subscriptions s where s.id = %(subscription)s::bigint for share
)
select case
           when c.definition > %(number)s::integer or c.acted > %(acted)s::bigint then null
           else :"schema".take(%(subscription)s::bigint, %(lanes)s::integer[])::text
       end,
       case when c.definition > %(number)s::integer then c.definition end
from current c
