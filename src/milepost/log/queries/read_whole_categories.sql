-- One page of some categories, everything in them: where it ends is found by sizes alone, as in a page of the whole
-- log. Each is read in order by its own part of the index, which has hashes: whoever reads the page looks at the
-- categories themselves.
select m."position", {{stream}}, m.version, uuid_send(m.id), m.type, timestamptz_send(m.time), m.size,
       m.data::text, m.properties::text, m.metadata::text
from (
    select m.*
    from unnest(%(hashes)s::integer[]) as chosen(hash)
    cross join lateral (
        select m.*
        from :"schema".messages m
        where m.category_hash = chosen.hash
          and m."position" > %(low)s
          and m."position" <= coalesce(
              (select max(m."position") from ({{sizes}}) m having sum(m.size) < %(bytes)s),
              (
                  select min(m."position")
                  from (
                      select m."position", sum(m.size) over (order by m."position" rows unbounded preceding) as bytes
                      from ({{sizes}}) m
                  ) m
                  where m.bytes >= %(bytes)s
              )
          )
          and exists (select from :"schema".server_life l where l.token = %(life)s)
        order by m."position"
        limit %(limit)s
    ) m
) m
{{streams}}
order by m."position"
