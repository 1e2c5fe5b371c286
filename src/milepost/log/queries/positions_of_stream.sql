-- Versions of a stream, from the first on, and where they stand.
select m.version, m."position"
from :"schema".messages m
where m.stream_id = (select s.stream_id from :"schema".streams s where s.name = %(stream)s::text)
order by m.version
limit %(limit)s::bigint
