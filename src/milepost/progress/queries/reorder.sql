select :"schema".reorder(%(subscription)s::bigint, %(definition)s::jsonb, %(rows)s::jsonb, %(program)s::text)
