-- The newest message up to a position, and the life of the server that it was found in.
select l.token, m."position", m.id, m."time"
from :"schema".server_life l
left join lateral (
    select m."position", m.id, m."time"
    from :"schema".messages m
    where m."position" <= %(horizon)s::bigint
    order by m."position" desc
    limit 1
) m on true
