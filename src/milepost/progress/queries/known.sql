-- The names of a group's subscriptions, and those that they had before.
select n.name
from :"schema".subscriptions s
cross join lateral unnest(s.former || s.name) n(name)
where s."group" = %(group)s::text
