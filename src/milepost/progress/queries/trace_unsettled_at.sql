-- The lowest of these positions that has an unsettled delivery.
select min(d."position")
from unnest((select %(positions)s::bigint[])) p("position")
cross join lateral (
    select d."position", d.state
    from :"schema".deliveries d
    where d.subscription = %(subscription)s::bigint and d."position" = p."position"
    limit 1
) d
where d.state not in ('skipped', 'done')
