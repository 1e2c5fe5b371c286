-- name: catalogue_categories
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


-- name: common_types
-- The most common types of the whole log with their shares, as PostgreSQL's statistics know them.
select t.type, t.share
from pg_stats s
cross join lateral unnest(s.most_common_vals::text::text[], s.most_common_freqs) as t(type, share)
where s.schemaname = :'schema' and s.tablename = 'messages' and s.attname = 'type'
order by t.type


-- name: catalogue_named_categories
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


-- name: related
-- Messages that have the same correlation id, or were caused by this message: no index has either, so only a range of
-- positions on each side of what was looked at before is, away from the message.
select m."position", s.name, m.version, m.id, m.type, m."time", m.metadata ->> 'causation_id'
from (
    (
        select m.*
        from :"schema".messages m
        where m."position" < %(below)s::bigint and m."position" >= %(low)s::bigint
          and (m.metadata ->> 'correlation_id' = %(correlation)s::text or m.metadata ->> 'causation_id' = %(id)s::text)
        order by m."position" desc
        limit %(limit)s::bigint
    )
    union all
    (
        select m.*
        from :"schema".messages m
        where m."position" > %(above)s::bigint and m."position" <= %(high)s::bigint
          and (m.metadata ->> 'correlation_id' = %(correlation)s::text or m.metadata ->> 'causation_id' = %(id)s::text)
        order by m."position"
        limit %(limit)s::bigint
    )
) m
cross join lateral (select s.name from :"schema".streams s where s.stream_id = m.stream_id limit 1) s
order by m."position"


-- name: catalogue_streams
-- Streams between two names that are in one of several ranges, in order, each with its last message. By the index over
-- names, once for each range, and for each stream by the one over versions.
select s.name, m.version, m."position", m.type, m."time"
from (
    select s.stream_id, s.name
    from unnest(%(lows)s::text[], %(highs)s::text[]) r(low, high)
    cross join lateral (
        select s.stream_id, s.name
        from :"schema".streams s
        where s.name >= r.low and s.name < r.high and s.name >= %(low)s::text and s.name < %(high)s::text
        order by s.name
        limit %(limit)s::bigint
    ) s
    order by s.name
    limit %(limit)s::bigint
) s
left join lateral (
    select m.version, m."position", m.type, m."time"
    from :"schema".messages m
    where m.stream_id = s.stream_id
    order by m.version desc
    limit 1
) m on true
order by s.name


-- name: catalogue_types
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
