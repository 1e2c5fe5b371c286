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
