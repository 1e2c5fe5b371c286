-- The newest message up to each of these positions, and what tells it from any other that was ever there.
select distinct m."position", uuid_send(m.id), timestamptz_send(m.time)
from unnest(%(positions)s::bigint[]) as wanted("position")
cross join lateral (
    select m."position", m.id, m.time
    from :"schema".messages m
    where m."position" <= wanted."position"
    order by m."position" desc
    limit 1
) m
order by 1 desc
