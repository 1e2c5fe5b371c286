-- One page of some categories, everything in them or in some lanes. Each is read in order by its own part of the index,
-- which has hashes: whoever reads the page looks at the categories themselves. See `read_categories` for the plan.
select m."position", {{stream}}, m.version, uuid_send(m.id), m.type, timestamptz_send(m.time), m.size,
       m.data::text, m.properties::text, m.metadata::text
from (
    select m.*
    from unnest(%(hashes)s::integer[]) as chosen(hash)
    cross join lateral (
        select m.*
        from :"schema".messages m
        where (m.category_hash, m."position") > (chosen.hash, %(low)s)
          and (m.category_hash, m."position") <= (chosen.hash, {{end}})
          {{lanes}}
          and exists (select from :"schema".server_life l where l.token = %(life)s)
        order by m.category_hash, m."position"
        limit %(limit)s
    ) m
) m
{{streams}}
order by m."position"
