-- The deliveries of these subscriptions at these positions. The arrays come by subqueries, so that the plan does not
-- depend on how long they are: long ones would read the whole table.
select d.subscription, d."position", d.lane, d.key, d.state, d.since, d.attempts, d.total, d.due, d.reason, d.error
from unnest((select %(subscriptions)s::bigint[])) s(subscription)
cross join unnest((select %(positions)s::bigint[])) p("position")
cross join lateral (
    select d.*
    from :"schema".deliveries d
    where d.subscription = s.subscription and d."position" = p."position"
    limit 1
) d
