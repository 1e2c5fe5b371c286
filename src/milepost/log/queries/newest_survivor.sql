-- Which of these messages is the newest that is still there. One that was lost and is appended again has the same id.
select max(m."position")
from unnest(%(positions)s::bigint[], %(ids)s::uuid[], %(times)s::timestamptz[]) as known("position", id, "time")
join :"schema".messages m on m."position" = known."position" and m.id = known.id and m."time" = known."time"
