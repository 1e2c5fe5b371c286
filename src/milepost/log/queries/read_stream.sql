-- One page of one stream, by version, to its last committed message: it needs no horizon.
select m."position", %(stream)s::text, m.version, uuid_send(m.id), m.type, timestamptz_send(m.time), m.size,
       m.data::text, m.properties::text, m.metadata::text
from (
    select m.*, sum(m.size) over (order by m.version {{direction}} rows unbounded preceding) as bytes
    from (
        select m.*
        from :"schema".messages m
        where m.stream_id = (select s.stream_id from :"schema".streams s where s.name = %(stream)s::text)
          and m.version > %(low)s::bigint and m.version <= %(high)s::bigint
          and m."position" > %(after)s::bigint
          {{conditions}}
        order by m.version {{direction}}
        limit %(limit)s::bigint
    ) m
) m
where m.bytes - m.size < %(bytes)s::bigint
order by m.version {{direction}}
