-- What streams are called. The token keeps names of another life of the server out.
select s.stream_id, s.name
from :"schema".streams s
where s.stream_id = any(%(numbers)s::text::bigint[])
  and exists (select from :"schema".server_life l where l.token = %(life)s)
