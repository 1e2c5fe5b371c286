-- name: conditions
          and (%(any_type)s::boolean or m.type = any(%(types)s::text[]) or m.type ~ %(type_pattern)s::text)
          and (%(since)s::timestamptz is null or m.time >= %(since)s::timestamptz
               or m."position" <= %(since_above)s::bigint)
          and (%(lanes)s::boolean[] is null
               or (%(lanes)s::boolean[])[mod(m.bucket, cardinality(%(lanes)s::boolean[])) + 1])
          and (%(where)s::text is null
               or jsonb_path_match(m.properties, %(where)s::text::jsonpath, %(where_values)s::text::jsonb, true))


-- name: read_log
-- One page across streams: a bounded range of positions, at most so many messages and bytes. The token keeps a page of
-- another life of the server out.
select m."position", {{stream}}, m.version, uuid_send(m.id), m.type, timestamptz_send(m.time), m.size,
       m.data::text, m.properties::text, m.metadata::text
from (
    select m.*, sum(m.size) over (order by m."position" {{direction}} rows unbounded preceding) as bytes
    from (
        select m.*
        from :"schema".messages m
        where m."position" > %(low)s and m."position" <= %(high)s
          {{conditions}}
          and exists (select from :"schema".server_life l where l.token = %(life)s)
        order by m."position" {{direction}}
        limit %(limit)s
    ) m
) m
{{streams}}
where m.bytes - m.size < %(bytes)s
order by m."position" {{direction}}


-- name: read_everything
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


-- name: read_categories
-- One page of some categories: each is read in order by its own part of the index, then they are joined. The
-- index has hashes: whoever reads the page looks at the categories themselves. Both columns of it are compared as one, which
-- no other index can do: whatever the statistics say, the log is not read for the few messages of a category.
select m."position", {{stream}}, m.version, uuid_send(m.id), m.type, timestamptz_send(m.time), m.size,
       m.data::text, m.properties::text, m.metadata::text
from (
    select m.*, sum(m.size) over (order by m."position" {{direction}} rows unbounded preceding) as bytes
    from (
        select m.*
        from unnest(%(hashes)s::integer[]) as chosen(hash)
        cross join lateral (
            select m.*
            from :"schema".messages m
            where (m.category_hash, m."position") > (chosen.hash, %(low)s)
              and (m.category_hash, m."position") <= (chosen.hash, %(high)s)
              {{conditions}}
              and exists (select from :"schema".server_life l where l.token = %(life)s)
            order by m.category_hash {{direction}}, m."position" {{direction}}
            limit %(limit)s
        ) m
        order by m."position" {{direction}}
        limit %(limit)s
    ) m
) m
{{streams}}
where m.bytes - m.size < %(bytes)s
order by m."position" {{direction}}


-- name: read_whole_categories
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


-- name: read_stream
-- One page of one stream, by version, to its last committed message: it needs no horizon.
select *
from :"schema".read_stream(
    %(stream)s::text, %(low)s::bigint, %(high)s::bigint, %(after)s::bigint, %(limit)s::bigint, %(bytes)s::bigint,
    %(backwards)s::boolean, %(any_type)s::boolean, %(types)s::text[], %(type_pattern)s::text,
    %(since)s::timestamptz, %(since_above)s::bigint, %(where)s::text::jsonpath, %(where_values)s::text::jsonb
)


-- name: read_streams
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


-- name: page_at
-- Messages at these positions, in order: at most so many bytes, and at least one.
select m."position", s.name, m.version, uuid_send(m.id), m.type, timestamptz_send(m.time), m.size,
       m.data::text, m.properties::text, m.metadata::text
from (
    select m.*, sum(m.size) over (order by m."position" rows unbounded preceding) as bytes
    from :"schema".messages m
    where m."position" = any(%(positions)s::bigint[])
) m
cross join lateral (
    select s.name from :"schema".streams s where s.stream_id = m.stream_id limit 1
) s
where m.bytes - m.size < %(bytes)s
order by m."position"


-- name: end_of_page
-- Where a page ends, by sizes alone: at the last message, or, if all of them together are too large, where the sum of
-- their sizes reaches the limit. Where there is nothing, at its beginning: nothing is looked for a second time.
coalesce(
    (
        select coalesce(max(m."position"), %(low)s)
        from ({{sizes}}) m
        having coalesce(sum(m.size), 0) < %(bytes)s
    ),
    (
        select min(m."position")
        from (
            select m."position", sum(m.size) over (order by m."position" rows unbounded preceding) as bytes
            from ({{sizes}}) m
        ) m
        where m.bytes >= %(bytes)s
    )
)


-- name: sizes_of_categories
-- The positions and sizes of the next messages of some categories, or of some lanes of these.
select m."position", m.size
from unnest(%(hashes)s::integer[]) as chosen(hash)
cross join lateral (
    select m."position", m.size
    from :"schema".messages m
    where (m.category_hash, m."position") > (chosen.hash, %(low)s)
      and (m.category_hash, m."position") <= (chosen.hash, %(high)s)
      {{lanes}}
    order by m.category_hash, m."position"
    limit %(limit)s
) m
order by m."position"
limit %(limit)s


-- name: sizes_of_log
-- The positions and sizes of the next messages of the log, or of some lanes.
select m."position", m.size
from :"schema".messages m
where m."position" > %(low)s and m."position" <= %(high)s
  {{lanes}}
order by m."position"
limit %(limit)s


-- name: visible_above
-- The ranges of positions above the horizon that are visible already.
select min(m."position"), max(m."position")
from (
    select m."position", m."position" - row_number() over (order by m."position") as island
    from :"schema".messages m
    where m."position" > %(horizon)s
) m
group by m.island
order by 1


-- name: messages_at
select *
from :"schema".messages_at(%(positions)s::bigint[], %(life)s::uuid)
