-- name: count_between
select count(*) from :"schema".messages m where m."position" > %(above)s::bigint and m."position" <= %(up_to)s::bigint


-- name: newest_up_to
-- The newest message up to a position, and the life of the server that it was found in.
select l.token, m."position", m.id, m."time"
from :"schema".server_life l
left join lateral (
    select m."position", m.id, m."time"
    from :"schema".messages m
    where m."position" <= %(horizon)s::bigint
    order by m."position" desc
    limit 1
) m on true


-- name: oldest_within
-- For each set of ranges of positions, the age in seconds of the first message in it.
select s.number, greatest(0, date_part('epoch', :"schema".clock() - m.time))
from jsonb_to_recordset(%(sets)s::jsonb) as s(number integer, lows bigint[], highs bigint[])
cross join lateral (
    select m.time
    from (select r.low, r.high from unnest(s.lows, s.highs) as r(low, high) order by r.low) r
    cross join lateral (
        select m.time
        from :"schema".messages m
        where m."position" between r.low and r.high
        order by m."position"
        limit 1
    ) m
    order by r.low
    limit 1
) m


-- name: position_before
select :"schema".position_before(%(since)s)


-- name: positions_of_id
-- Where a message of this id is, in whatever stream; there may be one in each.
select m."position"
from :"schema".messages m
where m.id = %(id)s::uuid
order by m."position"
limit %(limit)s::bigint


-- name: positions_of_stream
-- Versions of a stream, from the first on, and where they stand.
select m.version, m."position"
from :"schema".messages m
where m.stream_id = (select s.stream_id from :"schema".streams s where s.name = %(stream)s::text)
order by m.version
limit %(limit)s::bigint


-- name: version_up_to
-- The highest version of a stream that stands at or below a position, found by halves; 0 if none does.
with recursive of_stream as materialized (
    select s.stream_id from :"schema".streams s where s.name = %(stream)s::text
), halves(low, high) as (
    select 0::bigint, :"schema".last_version(%(stream)s::text)
    union all
    select case when m."position" <= %(position)s::bigint then m.version else h.low end,
           case when m."position" <= %(position)s::bigint then h.high else (h.low + h.high + 1) / 2 - 1 end
    from halves h
    cross join of_stream s
    cross join lateral (
        -- Retention may have removed the first versions.
        select m.version, m."position"
        from :"schema".messages m
        where m.stream_id = s.stream_id and m.version >= (h.low + h.high + 1) / 2
        order by m.version
        limit 1
    ) m
    where h.low < h.high
)
select max(h.low) from halves h
