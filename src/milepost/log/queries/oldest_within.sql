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
