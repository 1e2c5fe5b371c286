-- Nothing for a worker whose definition is not the newest: it would pass what only a newer program handles. The lock
-- keeps a change of the definition out meanwhile.
with current as materialized (
    select s.definition from :"schema".subscriptions s where s.id = %(subscription)s::bigint for share
)
select case
           when c.definition > %(number)s::integer then null
           else :"schema".take(%(subscription)s::bigint, %(lanes)s::integer[])::text
       end,
       c.definition
from current c
