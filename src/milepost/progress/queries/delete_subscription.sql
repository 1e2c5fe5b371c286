select :"schema".delete_subscription(%(subscription)s::bigint, %(barrier)s::text)
