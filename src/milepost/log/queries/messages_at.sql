-- Messages at these positions, in order.
select m."position", s.name, m.version, uuid_send(m.id), m.type, timestamptz_send(m.time), m.size,
       m.data::text, m.properties::text, m.metadata::text
from :"schema".messages m
join :"schema".streams s on s.stream_id = m.stream_id
where m."position" = any(%(positions)s::bigint[])
order by m."position"
