-- The types of the newest messages, of all or of each of some categories: no index has types, so only so many are
-- looked at.
select m.type, count(*), max(m."position"), max(m."time")
from (
    (
        select m.type, m."position", m."time"
        from :"schema".messages m
        where %(hashes)s::integer[] is null
        order by m."position" desc
        limit %(newest)s::bigint
    )
    union all
    (
        select m.type, m."position", m."time"
        from unnest(%(hashes)s::integer[]) h(hash)
        cross join lateral (
            select m.type, m."position", m."time"
            from :"schema".messages m
            where m.category_hash = h.hash
            order by m."position" desc
            limit %(newest)s::bigint
        ) m
    )
) m
where m.type >= %(low)s::text and m.type < %(high)s::text
group by m.type
order by m.type
limit %(limit)s::bigint
