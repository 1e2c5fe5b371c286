-- What streams are called.
select s.stream_id, s.name
from :"schema".streams s
where s.stream_id = any(%(numbers)s::text::bigint[])
