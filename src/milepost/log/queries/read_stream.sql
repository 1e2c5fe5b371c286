-- One page of one stream, by version, to its last committed message: it needs no horizon.
select m."position", m.name, m.version, m.id, m.type, m.time, m.size,
       m.data::text, m.properties::text, m.metadata::text
from (
    select m.*, sum(m.size) over (order by m.version {{direction}}) - m.size as bytes_before
    from (
        select m.*, s.name
        from :"schema".messages m
        join :"schema".streams s on s.stream_id = m.stream_id
        where s.name = %(stream)s::text
          and m.version > %(low)s::bigint and m.version <= %(high)s::bigint
          and m."position" > %(after)s::bigint
          and (cardinality(%(categories)s::text[]) = 0 or s.category = any(%(categories)s::text[]))
          and (%(any_type)s::boolean or m.type = any(%(types)s::text[]) or m.type ~ %(type_pattern)s::text)
          and (%(since)s::timestamptz is null or m.time >= %(since)s::timestamptz)
          and (%(where)s::text is null
               or jsonb_path_match(m.properties, %(where)s::text::jsonpath, %(where_values)s::text::jsonb, true))
        order by m.version {{direction}}
        limit %(limit)s::bigint
    ) m
) m
where m.bytes_before < %(bytes)s::bigint
order by m.version {{direction}}
