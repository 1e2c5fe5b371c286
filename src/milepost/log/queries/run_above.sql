-- The end of the run of visible positions directly above one: nothing can appear within it.
select coalesce(max(m."position"), %(low)s)
from (
    select m."position", row_number() over (order by m."position") as place
    from :"schema".messages m
    where m."position" > %(low)s and m."position" <= %(low)s + %(span)s
) m
where m."position" = %(low)s + m.place
