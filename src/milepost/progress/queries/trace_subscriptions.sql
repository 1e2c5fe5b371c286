-- What is stored of subscriptions, all or some of them: each definition, what was passed over, how far each lane is and
-- which live worker has it, and what live workers have had in flight for a while.
select json_build_object(
    'id', s.id, 'group', s."group", 'name', s.name, 'status', s.status, 'stalled', s.stalled,
    'since', :"schema".since_of(s.since, s.since_above),
    'barrier', case when s.barrier_until >= :"schema".clock() then s.barrier end, 'now', :"schema".clock(),
    'definitions', d.definitions, 'leaps', p.leaps,
    'memories', :"schema".remembered(s.id), 'lanes', l.lanes, 'flights', f.flights
)::text
from :"schema".subscriptions s
cross join lateral (
    select json_agg(
        json_build_object(
            'number', d.number, 'selects', d.selects, 'orders', d.orders, 'lanes', d.lanes, 'since', d.since,
            'positions', case when d.adopted then d.positions else array[c."position"] end,
            'aheads', case when d.adopted then d.aheads else jsonb_build_array(c.ahead) end)
        order by d.number) as definitions
    from :"schema".definitions d
    cross join lateral (
        -- By what nobody has adopted yet, nothing was passed.
        select c."position", c.ahead from :"schema".cursors c
        where c.subscription = s.id and c.lane = 0
        order by c.revision desc
        limit 1
    ) c
    where d.subscription = s.id
) d
cross join lateral (
    select coalesce(
        json_agg(json_build_object('number', p.number, 'lane', p.lane, 'low', p.low, 'high', p.high, 'at', p.at)), '[]') as leaps
    from :"schema".leaps p
    where p.subscription = s.id
) p
cross join lateral (
    select json_agg(
        json_build_object(
            'position', c."position", 'ahead', c.ahead, 'replay', coalesce(r.ranges, '{}'), 
            'owner', coalesce(w.id, v.worker),
            'stopped', (select t."limit" from :"schema".stopped_lanes(s) t where t.lane = g.lane limit 1),
            'held', c.epoch is not null and not c.released and (o.owner is null or w.id is not null))
        order by g.lane) as lanes
    from generate_series(0, s.lanes - 1) g(lane)
    cross join lateral (
        select c."position", c.ahead, c.epoch, c.released
        from :"schema".cursors c
        where c.subscription = s.id and c.lane = g.lane
        order by c.revision desc
        limit 1
    ) c
    left join :"schema".replays r on r.subscription = s.id and r.lane = g.lane
    left join :"schema".lanes o on o.subscription = s.id and o.lane = g.lane
    left join :"schema".workers w on w.id = o.owner and w.beat + w.lease >= :"schema".clock()
    left join lateral (
        -- Where leases are not kept in rows.
        select v.worker from :"schema".serving v
        where o.owner is null and v.subscription = s.id and g.lane = any (v.lanes) and :"schema".lives(v.worker, v.until)
        order by v.number desc
        limit 1
    ) v on true
) l
cross join lateral (
    select coalesce(
        json_agg(json_build_object('worker', r.worker, 'position', f."position", 'since', to_timestamp(f.since))),
        '[]') as flights
    from :"schema".reports r
    cross join lateral jsonb_to_recordset(r.flights) as f("position" bigint, since float8)
    where r.subscription = s.id and r.until >= :"schema".clock()
) f
where (%(group)s::text is null or s."group" = %(group)s::text) and (%(name)s::text is null or s.name = %(name)s::text)
order by s."group", s.name
