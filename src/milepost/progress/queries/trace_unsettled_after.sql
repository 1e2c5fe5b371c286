-- The next positions with unsettled deliveries, in order.
select d."position"
from :"schema".deliveries d
where d.subscription = %(subscription)s::bigint and d."position" > %(after)s::bigint and d.state not in ('skipped', 'done')
order by d."position"
limit %(limit)s::bigint
