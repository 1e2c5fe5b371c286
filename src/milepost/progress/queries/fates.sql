-- What became of deliveries at these positions.
select d."position", d.state, d.attempts, date_part('epoch', d.due), d.reason
from unnest(%(positions)s::bigint[]) p("position")
cross join lateral (
    select d.* from :"schema".deliveries d
    where d.subscription = %(subscription)s::bigint and d."position" = p."position"
    limit 1
) d
