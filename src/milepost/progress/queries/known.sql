select s.name from :"schema".subscriptions s where s."group" = %(group)s::text
