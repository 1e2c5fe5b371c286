select :"schema".reorder(
    %(subscription)s::bigint, %(definition)s::jsonb, %(rows)s::jsonb, %(program)s::text, %(worker)s::text,
    %(lease)s::interval
)::text
