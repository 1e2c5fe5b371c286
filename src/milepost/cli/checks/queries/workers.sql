-- Who works, or did and has not left, the most silent first.
select w.id, w."group", w.program, date_part('epoch', :"schema".clock() - w.beat), date_part('epoch', w.lease),
       (select count(*) from :"schema".lanes l where l.owner = w.id)
from :"schema".workers w
order by w.beat
limit %(most)s::bigint
