-- name: lift_barrier
select :"schema".lift_barrier(%(subscription)s::bigint, %(barrier)s::text)


-- name: set_barrier
select :"schema".set_barrier(%(subscription)s::bigint, %(barrier)s::text, null, %(during)s::interval)


-- name: yield_barrier
select :"schema".yield_barrier(%(subscription)s::bigint, %(barrier)s::text, %(during)s::interval)


-- name: take_back
select :"schema".take_back(%(subscription)s::bigint)


-- name: waits
-- Whether something still runs that ran when everything was to stand still.
select exists (
    select from :"schema".serving v
    where v.subscription = %(subscription)s::bigint and v.waits and :"schema".lives(v.worker, v.until))


-- name: row_positions
-- All rows of a subscription above a position, in order, some at a time.
select d."position"
from :"schema".deliveries d
where d.subscription = %(subscription)s::bigint and d."position" > %(after)s::bigint
order by d."position"
limit %(limit)s::bigint


-- name: rows_between
-- Rows above a position and up to another, and beyond that those which wait behind one of them.
with meant as materialized (
    select d."position", d.lane, d.state, d.key
    from :"schema".deliveries d
    where d.subscription = %(subscription)s::bigint and d."position" > %(above)s::bigint
      and d."position" <= coalesce(%(up_to)s::bigint, 9223372036854775807)
)
select m."position", m.lane, m.state from meant m
union all
select f."position", f.lane, f.state
from (select distinct m.lane, m.key from meant m where m.key is not null and m.state not in ('skipped', 'done')) k
cross join lateral (
    select d."position", d.lane, d.state
    from :"schema".deliveries d
    where d.subscription = %(subscription)s::bigint and d.lane = k.lane and d.key = k.key and d.state = 'waiting'
      and d."position" > %(up_to)s::bigint
) f
order by 1
