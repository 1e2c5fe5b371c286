select :"schema".expire_claims(%(subscription)s::bigint, %(limit)s::integer)
