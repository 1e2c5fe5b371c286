select :"schema".pull(
    %(group)s::text, %(name)s::text, %(limit)s::integer, %(bytes)s::bigint, %(seconds)s::float8, %(consumer)s::text,
    %(own)s::boolean, %(page)s::text::jsonb, %(positions)s::text::bigint[], %(sizes)s::text::integer[],
    array(select jsonb_array_elements_text(%(keys)s::text::jsonb))
)::text
