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
