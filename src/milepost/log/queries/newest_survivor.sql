select max(m."position")
from unnest(%(positions)s::bigint[], %(ids)s::uuid[]) as known("position", id)
join :"schema".messages m on m."position" = known."position" and m.id = known.id
