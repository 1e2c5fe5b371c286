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
