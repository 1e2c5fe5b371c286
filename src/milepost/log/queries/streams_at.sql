-- The streams and versions of the messages at these positions.
select m."position", s.name, m.version
from unnest((select %(positions)s::bigint[])) p("position")
cross join lateral (
    select m."position", m.stream_id, m.version from :"schema".messages m where m."position" = p."position" limit 1
) m
cross join lateral (
    select s.name from :"schema".streams s where s.stream_id = m.stream_id limit 1
) s
