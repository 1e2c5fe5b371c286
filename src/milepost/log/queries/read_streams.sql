-- One page of some streams: each is read by its own part of the index, from the version that stands at the beginning to the
-- one that stands at the end, then they are joined. So the log between them is not read, whatever the statistics say.
select m."position", {{stream}}, m.version, uuid_send(m.id), m.type, timestamptz_send(m.time), m.size,
       m.data::text, m.properties::text, m.metadata::text
from (
    select m.*, sum(m.size) over (order by m."position" {{direction}} rows unbounded preceding) as bytes
    from (
        select m.*
        from unnest(array(
            select s.stream_id from :"schema".streams s where s.name = any(%(streams)s::text[])
        )) as chosen(stream_id)
        cross join lateral (
            select :"schema".version_at(chosen.stream_id, %(low)s) as low,
                   :"schema".version_at(chosen.stream_id, %(high)s) as high
            offset 0
        ) versions
        cross join lateral (
            select m.*
            from :"schema".messages m
            where m.stream_id = chosen.stream_id and m.version > versions.low and m.version <= versions.high
              {{conditions}}
              and exists (select from :"schema".server_life l where l.token = %(life)s)
            order by m.version {{direction}}
            limit %(limit)s
        ) m
        order by m."position" {{direction}}
        limit %(limit)s
    ) m
) m
{{streams}}
where m.bytes - m.size < %(bytes)s
order by m."position" {{direction}}
