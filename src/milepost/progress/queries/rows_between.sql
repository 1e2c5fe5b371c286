select d."position", d.lane, d.state
from :"schema".deliveries d
where d.subscription = %(subscription)s::bigint and d."position" > %(above)s::bigint
  and d."position" <= coalesce(%(up_to)s::bigint, 9223372036854775807)
order by d."position"
