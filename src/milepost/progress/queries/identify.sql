select s.id from :"schema".subscriptions s where s."group" = %(group)s::text and s.name = %(name)s::text
