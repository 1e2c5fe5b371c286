select :"schema".lift_barrier(%(subscription)s::bigint, %(barrier)s::text)
