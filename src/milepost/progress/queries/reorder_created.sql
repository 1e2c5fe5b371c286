select :"schema".reorder_created(
    %(subscription)s::bigint, %(barrier)s::text, %(definition)s::jsonb, %(settings)s::jsonb, %(rows)s::jsonb,
    %(program)s::text
)
