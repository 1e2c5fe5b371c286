-- The lowest version of a stream that stands at one of these positions.
select min(m.version)
from unnest((select %(positions)s::bigint[])) p("position")
cross join lateral (
    select m.version, m.stream_id from :"schema".messages m where m."position" = p."position" limit 1
) m
where m.stream_id = (select s.stream_id from :"schema".streams s where s.name = %(stream)s::text)
