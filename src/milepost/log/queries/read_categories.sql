-- One page of some categories: each is read in order by its own part of the index, then they are joined. The
-- index has hashes: whoever reads the page looks at the categories themselves.
select m."position", s.name, m.version, uuid_send(m.id), m.type, timestamptz_send(m.time), m.size,
       m.data::text, m.properties::text, m.metadata::text
from (
    select m.*, sum(m.size) over (order by m."position" {{direction}} rows unbounded preceding) as bytes
    from (
        select m.*
        from unnest(%(hashes)s::integer[]) as chosen(hash)
        cross join lateral (
            select m.*
            from :"schema".messages m
            where m.category_hash = chosen.hash
              and m."position" > %(low)s and m."position" <= %(high)s
              {{conditions}}
              and exists (select from :"schema".server_life l where l.token = %(life)s)
            order by m."position" {{direction}}
            limit %(limit)s
        ) m
        order by m."position" {{direction}}
        limit %(limit)s
    ) m
) m
-- By its index, one by one: a join would read all streams as soon as a page is large enough.
cross join lateral (select s.name from :"schema".streams s where s.stream_id = m.stream_id limit 1) s
where m.bytes - m.size < %(bytes)s
order by m."position" {{direction}}
