-- All rows of a subscription above a position, in order, some at a time.
select d."position"
from :"schema".deliveries d
where d.subscription = %(subscription)s::bigint and d."position" > %(after)s::bigint
order by d."position"
limit %(limit)s::bigint
