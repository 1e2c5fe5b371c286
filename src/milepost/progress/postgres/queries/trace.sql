-- name: trace_answered
-- Who has told what it does since then, and for which subscription.
select r.subscription, r.worker from :"schema".reports r where r.told >= %(since)s::timestamptz


-- name: trace_ask
-- Workers are to say what they have in hand; when that was asked.
select pg_notify(:'schema', 'ask'), :"schema".clock()


-- name: trace_keys
-- For messages and their keys: what holds the key before the message, and how many wait after it, up to a limit, and
-- the first of them. A parked one holds it, unless one after that runs or is tried again, or the subscription was
-- created so that it goes on: then parked ones do not. What a program declares is not stored.
select case when k.parked then h."position" else a."position" end, case when k.parked then 'parked' else a.state end,
       w.waiting, w.first
from unnest(
    (select %(subscriptions)s::bigint[]), (select %(lanes)s::integer[]), (select %(keys)s::text[]),
    (select %(positions)s::bigint[])
) with ordinality g(subscription, lane, key, "position", ordinal)
cross join lateral (
    select s.settings ->> 'on_park' is distinct from 'continue' as blocks
    from :"schema".subscriptions s
    where s.id = g.subscription
) o
left join lateral (
    select d."position", d.state
    from :"schema".deliveries d
    where d.subscription = g.subscription and d.lane = g.lane and d.key = g.key and d."position" < g."position"
      and d.state in ('waiting', 'running', 'retrying', 'unrouted')
    order by d."position"
    limit 1
) a on true
left join lateral (
    select d."position"
    from :"schema".deliveries d
    where d.subscription = g.subscription and d.lane = g.lane and d.key = g.key and d."position" < g."position"
      and d.state = 'parked' and o.blocks
    order by d."position"
    limit 1
) h on true
cross join lateral (
    select h."position" is not null and coalesce(a.state = 'waiting', true) as parked
) k
cross join lateral (
    select count(*) as waiting, (array_agg(b."position" order by b."position"))[:%(shown)s::integer] as first
    from (
        select d."position", d.state, first_value(d.state) over (order by d."position") as next
        from :"schema".deliveries d
        where d.subscription = g.subscription and d.lane = g.lane and d.key = g.key and d."position" > g."position"
          and d.state in ('waiting', 'running', 'retrying', 'unrouted')
        order by d."position"
        limit %(most)s::bigint
    ) b
    -- Where one of them runs or is tried again, they wait for that one.
    where b.state = 'waiting' and b.next = 'waiting'
      and (o.blocks or not exists (
          select from :"schema".deliveries d
          where d.subscription = g.subscription and d."position" = g."position" and d.state = 'parked'))
) w
order by g.ordinal


-- name: trace_lowest_of_key
-- The lowest position of a key whose delivery is unsettled.
select least(
    (
        select d."position"
        from :"schema".deliveries d
        where d.subscription = %(subscription)s::bigint and d.lane = %(lane)s::integer and d.key = %(key)s::text
          and d.state in ('waiting', 'running', 'retrying', 'unrouted')
        order by d."position"
        limit 1
    ),
    (
        select d."position"
        from :"schema".deliveries d
        where d.subscription = %(subscription)s::bigint and d.lane = %(lane)s::integer and d.key = %(key)s::text
          and d.state = 'parked'
        order by d."position"
        limit 1
    ))


-- name: trace_rows
-- The deliveries of these subscriptions at these positions. The arrays come by subqueries, so that the plan does not
-- depend on how long they are: long ones would read the whole table.
select d.subscription, d."position", d.lane, d.key, d.state, d.since, d.attempts, d.total, d.due, d.reason, d.error
from unnest((select %(subscriptions)s::bigint[])) s(subscription)
cross join unnest((select %(positions)s::bigint[])) p("position")
cross join lateral (
    select d.*
    from :"schema".deliveries d
    where d.subscription = s.subscription and d."position" = p."position"
    limit 1
) d


-- name: trace_subscriptions
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


-- name: trace_unsettled_after
-- The next positions with unsettled deliveries, in order.
select d."position"
from :"schema".deliveries d
where d.subscription = %(subscription)s::bigint and d."position" > %(after)s::bigint and d.state not in ('skipped', 'done')
order by d."position"
limit %(limit)s::bigint


-- name: trace_unsettled_at
-- The lowest of these positions that has an unsettled delivery.
select min(d."position")
from unnest((select %(positions)s::bigint[])) p("position")
cross join lateral (
    select d."position", d.state
    from :"schema".deliveries d
    where d.subscription = %(subscription)s::bigint and d."position" = p."position"
    limit 1
) d
where d.state not in ('skipped', 'done')
