-- One page of the whole log: at most so many messages and bytes. The first pass finds where it ends, by sizes
-- alone. The token keeps a page of another life of the server out.
select m."position", (select s.name from :"schema".streams s where s.stream_id = m.stream_id),
       m.version, m.id, m.type, m.time, m.size, m.data::text, m.properties::text, m.metadata::text
from :"schema".messages m
where m."position" > %(low)s
  and m."position" <= (
      select coalesce(min(m."position") filter (where m.bytes >= %(bytes)s), max(m."position"))
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
  )
  and exists (select from :"schema".server_life l where l.token = %(life)s)
order by m."position"
