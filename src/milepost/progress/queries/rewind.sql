select :"schema".rewind(%(survived)s::bigint, %(log)s::uuid, %(id)s::uuid, %(time)s::timestamptz)
