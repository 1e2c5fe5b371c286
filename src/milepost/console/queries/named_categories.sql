-- Categories, each with its newest message.
select c.category, m."position", m.type, m."time"
from unnest(%(categories)s::text[]) c(category)
left join lateral (
    select m."position", m.type, m."time"
    from :"schema".messages m
    -- By its index, one by one: a join would read all streams as soon as there are few.
    cross join lateral (select s.category from :"schema".streams s where s.stream_id = m.stream_id limit 1) s
    where m.category_hash = :"schema".category_hash(c.category) and s.category = c.category
    order by m."position" desc
    limit 1
) m on true
