select :"schema".create_subscription(
    %(definition)s::jsonb, %(settings)s::jsonb, %(if_exists)s::text, %(program)s::text
)
