-- Who works, or did and has not left: processes with handlers, and those with consumers.
select w.id, w."group", w.program, w.beat, date_part('epoch', :"schema".clock() - w.beat), date_part('epoch', w.lease),
       (select count(*) from :"schema".lanes l where l.owner = w.id),
       (select coalesce(sum(a.consumers), 0) from :"schema".attending a
        where a.worker = w.id and a.until >= :"schema".clock())
from :"schema".workers w
order by w."group", w.id
limit %(most)s::bigint
