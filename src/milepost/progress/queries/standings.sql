-- How subscriptions stand, all or one of them, and of each lane how far it is and which live worker has it.
select json_build_object(
    'id', s.id, 'group', s."group", 'name', s.name, 'status', s.status, 'stalled', s.stalled,
    'barrier', case when s.barrier_until >= :"schema".clock() then s.barrier end,
    'waiting', n.waiting, 'retrying', n.retrying, 'unrouted', n.unrouted, 'parked', n.parked, 'told', t.told, 'lanes', l.lanes,
    'outdated', coalesce((
        select json_agg(v.worker order by v.worker) from :"schema".serving v
        where v.subscription = s.id and v.number < s.definition and :"schema".lives(v.worker, v.until)), '[]'),
    'settings', case when not s.in_code then s.settings end, 'consumers', a.consumers, 'standby', a.standby
)::text
from :"schema".subscriptions s
cross join lateral (
    select coalesce(sum(c.waiting), 0) as waiting, coalesce(sum(c.retrying), 0) as retrying,
           coalesce(sum(c.unrouted), 0) as unrouted, coalesce(sum(c.parked), 0) as parked
    from :"schema".counts c
    where c.subscription = s.id
) n
cross join lateral (
    select json_build_object(
        'rate', coalesce(sum(r.rate) filter (where r.until >= :"schema".clock()), 0),
        'in_flight', coalesce(sum(r.in_flight) filter (where r.until >= :"schema".clock()), 0),
        'error', (array_agg(r.error order by r.error_at desc) filter (where r.error is not null))[1],
        'error_at', max(r.error_at)) as told
    from :"schema".reports r
    where r.subscription = s.id
) t
cross join lateral (
    select json_agg(
        json_build_object(
            'number', g.lane, 'position', c."position", 'ahead', c.ahead, 'owner', coalesce(w.id, v.worker),
            'since', o.since, 'held', v.worker is not null,
            'replay', (select r.ranges from :"schema".replays r where r.subscription = s.id and r.lane = g.lane))
        order by g.lane) as lanes
    from generate_series(0, s.lanes - 1) g(lane)
    cross join lateral (
        select c."position", c.ahead
        from :"schema".cursors c
        where c.subscription = s.id and c.lane = g.lane
        order by c.revision desc
        limit 1
    ) c
    left join :"schema".lanes o on o.subscription = s.id and o.lane = g.lane
    left join :"schema".workers w on w.id = o.owner and w.beat + w.lease >= :"schema".clock()
    left join lateral (
        select v.worker from :"schema".serving v
        where v.subscription = s.id and g.lane = any (v.lanes) and :"schema".lives(v.worker, v.until)
        order by v.number desc
        limit 1
    ) v on true
) l
cross join lateral (
    select coalesce(sum(a.consumers), 0) as consumers,
           coalesce(json_agg(a.worker order by a.worker) filter (where not a.owns), '[]') as standby
    from :"schema".attending a
    where a.subscription = s.id and a.until >= :"schema".clock()
) a
where %(name)s::text is null or s.id = :"schema".named(%(group)s::text, %(name)s::text)
order by s."group", s.name
