-- One page of one stream, by version, to its last committed message: it needs no horizon.
select *
from :"schema".read_stream(
    %(stream)s::text, %(low)s::bigint, %(high)s::bigint, %(after)s::bigint, %(limit)s::bigint, %(bytes)s::bigint,
    %(backwards)s::boolean, %(any_type)s::boolean, %(types)s::text[], %(type_pattern)s::text,
    %(since)s::timestamptz, %(since_above)s::bigint, %(where)s::text::jsonpath, %(where_values)s::text::jsonb
)
