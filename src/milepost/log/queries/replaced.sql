-- How far positions have been drawn, and the lowest of these at which another message is now.
select case when q.is_called then q.last_value else 0 end,
       (
           select min(m."position")
           from unnest(%(positions)s::bigint[], %(ids)s::uuid[], %(times)s::timestamptz[]) as known("position", id, "time")
           join :"schema".messages m on m."position" = known."position"
           where (m.id, m."time") is distinct from (known.id, known."time")
       )
from :"schema".messages_position_seq q
