-- One page of the whole log: at most so many messages and bytes. Where it ends is found by sizes alone: at the
-- last message, or, if all of them together are too large, where the sum of their sizes reaches the limit.
-- The token keeps a page of another life of the server out.
select m."position", {{stream}}, m.version, uuid_send(m.id), m.type, timestamptz_send(m.time), m.size,
       m.data::text, m.properties::text, m.metadata::text
from (
    select m.*
    from :"schema".messages m
    where m."position" > %(low)s
      and m."position" <= coalesce(
          (
              select max(m."position")
              from (
                  select m."position", m.size
                  from :"schema".messages m
                  where m."position" > %(low)s and m."position" <= %(high)s
                  order by m."position"
                  limit %(limit)s
              ) m
              having sum(m.size) < %(bytes)s
          ),
          (
              select min(m."position")
              from (
                  select m."position", sum(m.size) over (order by m."position" rows unbounded preceding) as bytes
                  from (
                      select m."position", m.size
                      from :"schema".messages m
                      where m."position" > %(low)s and m."position" <= %(high)s
                      order by m."position"
                      limit %(limit)s
                  ) m
              ) m
              where m.bytes >= %(bytes)s
          )
      )
      and exists (select from :"schema".server_life l where l.token = %(life)s)
    order by m."position"
    limit %(limit)s
) m
{{streams}}
order by m."position"
