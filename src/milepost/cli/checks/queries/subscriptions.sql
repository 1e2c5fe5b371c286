-- How subscriptions stand, as far as a person should know: what keeps them from going on, who serves them, and the first
-- of what waits for somebody. What is parked is looked through up to a limit.
select json_build_object(
    'group', s."group", 'name', s.name,
    'taken_by', case when s.in_code then 'handlers' when s.settings ->> 'tracking' = 'all' then 'pulls' else 'consumers' end,
    'status', s.status, 'stalled', s.stalled,
    'stopped', (select t."limit" from :"schema".stopped_lanes(s) t order by t.lane limit 1),
    'barrier', case when s.barrier_until >= :"schema".clock() then s.barrier end,
    'barrier_seconds', date_part('epoch', s.barrier_until - :"schema".clock()), 'barrier_at', s.barrier_at,
    'retrying', n.retrying, 'parked', n.parked, 'first_parked', p."position",
    'parked_seconds', date_part('epoch', :"schema".clock() - p.since),
    'unrouted', n.unrouted, 'first_unrouted', u."position",
    'unrouted_seconds', date_part('epoch', :"schema".clock() - u.since),
    'workers', w.workers, 'lease', w.lease, 'outdated', v.outdated,
    'lanes', s.lanes, 'free', l.free, 'free_seconds', l.seconds, 'position', l.lowest
)::text
from :"schema".subscriptions s
cross join lateral (
    select coalesce(sum(c.retrying), 0) as retrying, coalesce(sum(c.parked), 0) as parked,
           coalesce(sum(c.unrouted), 0) as unrouted
    from :"schema".counts c
    where c.subscription = s.id
) n
left join lateral (
    select d."position", d.since
    from (
        select min(f."position") as "position"
        from (
            select d."position" from :"schema".deliveries d
            where d.subscription = s.id and d.state = 'parked'
            limit %(most)s::bigint
        ) f
    ) f
    cross join lateral (
        select d."position", d.since from :"schema".deliveries d
        where d.subscription = s.id and d."position" = f."position"
        limit 1
    ) d
) p on n.parked > 0
left join lateral (
    select f."position", f.since
    from generate_series(0, s.lanes - 1) g(lane)
    cross join lateral (
        select d."position", d.since from :"schema".deliveries d
        where d.subscription = s.id and d.lane = g.lane and d.state = 'unrouted'
        order by d."position"
        limit 1
    ) f
    order by f."position"
    limit 1
) u on n.unrouted > 0
cross join lateral (
    select count(*) as workers, date_part('epoch', max(w.lease)) as lease
    from :"schema".workers w
    where s.id = any (w.wants) and w.beat + w.lease >= :"schema".clock()
) w
cross join lateral (
    select count(*) filter (where v.number < s.definition) as outdated
    from :"schema".serving v
    where v.subscription = s.id and :"schema".lives(v.worker, v.until)
) v
cross join lateral (
    select min(c."position") as lowest, count(*) filter (where not c.is_held) as free,
           date_part('epoch', max(:"schema".clock() - coalesce(o.since, s.created)) filter (where not c.is_held))
               as seconds
    from generate_series(0, s.lanes - 1) g(lane)
    cross join lateral (
        select c."position", :"schema".is_held(s.id, g.lane) as is_held
        from :"schema".cursors c
        where c.subscription = s.id and c.lane = g.lane
        order by c.revision desc
        limit 1
    ) c
    left join :"schema".lanes o on o.subscription = s.id and o.lane = g.lane
) l
order by s."group", s.name
limit %(subscriptions)s::bigint
