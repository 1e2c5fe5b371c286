-- The ranges of positions above the horizon that are visible already.
select min(m."position"), max(m."position")
from (
    select m."position", m."position" - row_number() over (order by m."position") as island
    from :"schema".messages m
    where m."position" > %(horizon)s
) m
group by m.island
order by 1
