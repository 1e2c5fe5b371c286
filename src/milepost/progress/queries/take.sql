select :"schema".take(%(subscription)s::bigint, %(lanes)s::integer[])::text
