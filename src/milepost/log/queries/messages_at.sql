-- Messages at these positions, in order. The token, if one is given, keeps messages of another life of the server out.
select m."position", s.name, m.version, uuid_send(m.id), m.type, timestamptz_send(m.time), m.size,
       m.data::text, m.properties::text, m.metadata::text
from :"schema".messages m
cross join lateral (
    select s.name from :"schema".streams s where s.stream_id = m.stream_id limit 1
) s
where m."position" = any(%(positions)s::bigint[])
  and (%(life)s::uuid is null or exists (select from :"schema".server_life l where l.token = %(life)s::uuid))
order by m."position"
