-- One page across streams: a bounded range of positions, at most so many messages and bytes. The token keeps a page of
-- another life of the server out.
select m."position", {{stream}}, m.version, uuid_send(m.id), m.type, timestamptz_send(m.time), m.size,
       m.data::text, m.properties::text, m.metadata::text
from (
    select m.*, sum(m.size) over (order by m."position" {{direction}} rows unbounded preceding) as bytes
    from (
        select m.*
        from :"schema".messages m
        where m."position" > %(low)s and m."position" <= %(high)s
          {{conditions}}
          and exists (select from :"schema".server_life l where l.token = %(life)s)
        order by m."position" {{direction}}
        limit %(limit)s
    ) m
) m
{{streams}}
where m.bytes - m.size < %(bytes)s
order by m."position" {{direction}}
