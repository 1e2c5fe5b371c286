select :"schema".yield_barrier(%(subscription)s::bigint, %(barrier)s::text, %(during)s::interval)
