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
