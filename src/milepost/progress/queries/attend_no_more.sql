delete from :"schema".attending a where a.subscription = %(subscription)s::bigint and a.worker = %(worker)s::text
