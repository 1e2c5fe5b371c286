-- The positions and sizes of the next messages of some categories, or of some lanes of these.
select m."position", m.size
from unnest(%(hashes)s::integer[]) as chosen(hash)
cross join lateral (
    select m."position", m.size
    from :"schema".messages m
    where (m.category_hash, m."position") > (chosen.hash, %(low)s)
      and (m.category_hash, m."position") <= (chosen.hash, %(high)s)
      {{lanes}}
    order by m.category_hash, m."position"
    limit %(limit)s
) m
order by m."position"
limit %(limit)s
