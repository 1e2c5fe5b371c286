select :"schema".set_status(%(subscription)s::bigint, %(status)s::text)
