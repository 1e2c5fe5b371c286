select coalesce(max(m.version), 0)
from :"schema".messages m
where m.stream_id = (select s.stream_id from :"schema".streams s where s.name = %(stream)s::text)
