-- Categories between two names of streams, each with its newest message: the index over names is entered once for
-- each, behind all streams of the one before. A name without a dash is a category of its own, and the names that
-- begin with it and a dash come later; it is left out where there are such.
with recursive found as (
    (
        select s.name, s.category, 1 as number
        from :"schema".streams s
        where s.name >= %(low)s::text and s.name < %(high)s::text
        order by s.name
        limit 1
    )
    union all
    select n.name, n.category, f.number + 1
    from found f
    cross join lateral (
        select s.name, s.category
        from :"schema".streams s
        where s.name >= case when f.name = f.category then f.name || chr(1) else f.category || '.' end
          and s.name < %(high)s::text
        order by s.name
        limit 1
    ) n
    where f.number < %(limit)s::bigint
)
select f.category, m."position", m.type, m."time",
       case when f.name = f.category then f.name || chr(1) else f.category || '.' end as rest,
       f.name = f.category and coalesce((
           select true
           from :"schema".streams s
           where s.name >= f.category || '-' and s.name < f.category || '.'
           order by s.name
           limit 1
       ), false) as comes_later
from found f
left join lateral (
    select m."position", m.type, m."time"
    from :"schema".messages m
    -- By its index, one by one: a join would read all streams as soon as there are few.
    cross join lateral (select s.category from :"schema".streams s where s.stream_id = m.stream_id limit 1) s
    where m.category_hash = :"schema".category_hash(f.category) and s.category = f.category
    order by m."position" desc
    limit 1
) m on true
order by f.number
