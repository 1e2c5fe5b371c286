select :"schema".opened(s.id, s.definition)::text
from :"schema".subscriptions s
where s."group" = %(group)s::text and s.name = %(name)s::text
