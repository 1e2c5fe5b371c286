-- name: stream_names
-- What streams are called. How many are asked for is hidden: for many PostgreSQL would read all streams, and compare each
-- with all of these. The token keeps names of another life of the server out.
select s.stream_id, s.name
from :"schema".streams s
where s.stream_id = any((select %(numbers)s::text::bigint[])::bigint[])
  and exists (select from :"schema".server_life l where l.token = %(life)s)


-- name: streams_at
-- The streams and versions of the messages at these positions.
select m."position", s.name, m.version
from unnest((select %(positions)s::bigint[])) p("position")
cross join lateral (
    select m."position", m.stream_id, m.version from :"schema".messages m where m."position" = p."position" limit 1
) m
cross join lateral (
    select s.name from :"schema".streams s where s.stream_id = m.stream_id limit 1
) s
