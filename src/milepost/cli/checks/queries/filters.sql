-- What subscriptions with a filter select.
select s."group", s.name, d.selects
from :"schema".subscriptions s
join :"schema".definitions d on d.subscription = s.id and d.number = s.definition
where d.selects like '%%"where":"%%'
order by s."group", s.name
limit %(most)s::bigint
