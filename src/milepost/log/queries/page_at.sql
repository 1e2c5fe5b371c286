-- Messages at these positions, in order: at most so many bytes, and at least one.
select m."position", s.name, m.version, uuid_send(m.id), m.type, timestamptz_send(m.time), m.size,
       m.data::text, m.properties::text, m.metadata::text
from (
    select m.*, sum(m.size) over (order by m."position" rows unbounded preceding) as bytes
    from :"schema".messages m
    where m."position" = any(%(positions)s::bigint[])
) m
cross join lateral (
    select s.name from :"schema".streams s where s.stream_id = m.stream_id limit 1
) s
where m.bytes - m.size < %(bytes)s
order by m."position"
