-- The newest messages of some streams, or else of some categories, or else of all, each found by an index; what of them
-- a definition looks at.
select s.name, m.type, m.properties::text
from (
    (
        select m."position", m.stream_id, m.type, m.properties
        from :"schema".messages m
        where %(everything)s::boolean
        order by m."position" desc
        limit %(each)s::bigint
    )
    union all
    select m.*
    from unnest(%(hashes)s::integer[]) c(hash)
    cross join lateral (
        select m."position", m.stream_id, m.type, m.properties
        from :"schema".messages m
        -- Written so that no plan walks the whole log for a category that has few messages.
        where m.category_hash >= c.hash and m.category_hash <= c.hash
        order by m.category_hash desc, m."position" desc
        limit %(each)s::bigint
    ) m
    union all
    select m.*
    from unnest(%(streams)s::text[]) n(name)
    cross join lateral (select s.stream_id from :"schema".streams s where s.name = n.name limit 1) s
    cross join lateral (
        select m."position", m.stream_id, m.type, m.properties
        from :"schema".messages m
        where m.stream_id = s.stream_id
        order by m.version desc
        limit %(each)s::bigint
    ) m
) m
cross join lateral (select s.name from :"schema".streams s where s.stream_id = m.stream_id limit 1) s
order by m."position" desc
limit %(most)s::bigint
