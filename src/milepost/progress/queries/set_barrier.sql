select :"schema".set_barrier(%(subscription)s::bigint, %(barrier)s::text, null, %(during)s::interval)
