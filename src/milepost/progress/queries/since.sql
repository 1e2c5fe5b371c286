select s.since, s.since_above from :"schema".subscriptions s where s.id = %(subscription)s::bigint
