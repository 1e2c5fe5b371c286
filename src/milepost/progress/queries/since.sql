select s.since from :"schema".subscriptions s where s.id = %(subscription)s::bigint
