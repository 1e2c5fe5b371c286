-- What streams are called. How many are asked for is hidden: for many PostgreSQL would read all streams, and compare each
-- with all of these. The token keeps names of another life of the server out.
select s.stream_id, s.name
from :"schema".streams s
where s.stream_id = any((select %(numbers)s::text::bigint[])::bigint[])
  and exists (select from :"schema".server_life l where l.token = %(life)s)
