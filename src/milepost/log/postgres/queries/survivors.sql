-- name: identity
select i.log from :"schema".identity i


-- name: marks_at
-- What tells the messages at these positions from any others that were ever there.
select m."position", m.id, m."time"
from :"schema".messages m
where m."position" = any(%(positions)s::bigint[])


-- name: marks_up_to
-- The newest message up to each of these positions, and what tells it from any other that was ever there.
select distinct m."position", m.id, m."time"
from unnest(%(positions)s::bigint[]) as wanted("position")
cross join lateral (
    select m."position", m.id, m.time
    from :"schema".messages m
    where m."position" <= wanted."position"
    order by m."position" desc
    limit 1
) m
order by 1 desc


-- name: newest_survivor
-- Which of these messages is the newest that is still there. One that was lost and is appended again has the same id.
select max(m."position")
from unnest(%(positions)s::bigint[], %(ids)s::uuid[], %(times)s::timestamptz[]) as known("position", id, "time")
join :"schema".messages m on m."position" = known."position" and m.id = known.id and m."time" = known."time"


-- name: replaced
-- How far positions have been drawn, and the lowest of these at which another message is now.
select case when q.is_called then q.last_value else 0 end,
       (
           select min(m."position")
           from unnest(%(positions)s::bigint[], %(ids)s::uuid[], %(times)s::timestamptz[]) as known("position", id, "time")
           join :"schema".messages m on m."position" = known."position"
           where (m.id, m."time") is distinct from (known.id, known."time")
       )
from :"schema".messages_position_seq q
