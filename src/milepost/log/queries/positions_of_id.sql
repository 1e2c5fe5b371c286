-- Where a message of this id is, in whatever stream; there may be one in each.
select m."position"
from :"schema".messages m
where m.id = %(id)s::uuid
order by m."position"
limit %(limit)s::bigint
