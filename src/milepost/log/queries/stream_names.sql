-- What streams are called, each found by its index: PostgreSQL would rather read them all, and compare each with
-- all that are asked for. The token keeps names of another life of the server out.
select s.stream_id, s.name
from unnest(%(numbers)s::text::bigint[]) as wanted(stream_id)
cross join lateral (
    select s.stream_id, s.name from :"schema".streams s where s.stream_id = wanted.stream_id limit 1
) s
where exists (select from :"schema".server_life l where l.token = %(life)s)
