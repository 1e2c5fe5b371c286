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
