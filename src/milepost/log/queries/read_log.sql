-- One page across streams: a bounded range of positions, at most so many messages and bytes.
-- {{access}} narrows it by an index. The token keeps a page of another life of the server out.
select m."position", m.name, m.version, m.id, m.type, m.time, m.size,
       m.data::text, m.properties::text, m.metadata::text
from (
    select m.*, sum(m.size) over (order by m."position" {{direction}}) - m.size as bytes_before
    from (
        select m.*, s.name
        from :"schema".messages m
        join :"schema".streams s on s.stream_id = m.stream_id
        where m."position" > %(low)s and m."position" <= %(high)s
          {{access}}
          and (%(any_type)s::boolean or m.type = any(%(types)s::text[]) or m.type ~ %(type_pattern)s::text)
          and (%(since)s::timestamptz is null or m.time >= %(since)s)
          and (%(where)s::text is null
               or jsonb_path_match(m.properties, %(where)s::text::jsonpath, %(where_values)s::text::jsonb, true))
          and exists (select from :"schema".server_life l where l.token = %(life)s)
        order by m."position" {{direction}}
        limit %(limit)s
    ) m
) m
where m.bytes_before < %(bytes)s
order by m."position" {{direction}}
