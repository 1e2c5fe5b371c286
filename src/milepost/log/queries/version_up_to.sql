-- The highest version of a stream that stands at or below a position, found by halves; 0 if none does.
with recursive of_stream as materialized (
    select s.stream_id from :"schema".streams s where s.name = %(stream)s::text
), halves(low, high) as (
    select 0::bigint, %(known)s::bigint
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
