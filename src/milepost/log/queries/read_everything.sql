-- One page of the whole log, or of some lanes: at most so many messages and bytes. The token keeps a page of another
-- life of the server out.
select m."position", {{stream}}, m.version, uuid_send(m.id), m.type, timestamptz_send(m.time), m.size,
       m.data::text, m.properties::text, m.metadata::text
from (
    select m.*
    from :"schema".messages m
    where m."position" > %(low)s
      and m."position" <= {{end}}
      {{lanes}}
      and exists (select from :"schema".server_life l where l.token = %(life)s)
    order by m."position"
    limit %(limit)s
) m
{{streams}}
order by m."position"
