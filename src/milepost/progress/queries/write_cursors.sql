-- The usual exchange: cursors and nothing else, of lanes of any subscriptions. What it tells beside is what every
-- exchange tells. A lane that is missing in what it returns has another owner, or was taken in another life of the
-- server. In a transaction of a handler's, what
-- is written here holds the lane until the commit: a process that is stopped before that must not hold it for ever.
-- In order: two who write the same lanes wait for each other in one direction. Rows are looked for by the index, in
-- its order: asked whether any exist, the planner would read a whole table that is full of another subscription's.
with given as (
    select g.*
    from unnest(
        %(subscriptions)s::bigint[], %(lanes)s::integer[], %(lives)s::uuid[], %(epochs)s::bigint[],
        %(revisions)s::bigint[], %(positions)s::bigint[], %(aheads)s::text[]
    ) as g(subscription, lane, life, epoch, revision, "position", ahead)
),
written as (
    insert into :"schema".cursors (subscription, lane, revision, epoch, "position", ahead)
    select c.subscription, c.lane, c.revision + 1, c.epoch, g."position", g.ahead::bigint[]
    from given g
    join :"schema".cursors c
      on c.subscription = g.subscription and c.lane = g.lane and c.revision = g.revision and c.epoch = g.epoch
    where g.life = (select l.token from :"schema".server_life l)
    order by g.subscription, g.lane
    returning subscription, lane, epoch, revision
)
select w.subscription, w.lane, w.epoch, w.revision - 1, date_part('epoch', :"schema".clock()), s.streak, s.stalled,
       (
           select true from :"schema".deliveries d
           where d.subscription = w.subscription and d.lane = w.lane
             and d.state in ('waiting', 'running', 'retrying', 'unrouted')
           order by d.key, d."position" limit 1
       ) is not null or (
           select true from :"schema".deliveries d
           where d.subscription = w.subscription and d.lane = w.lane and d.state = 'parked'
           order by d.key, d."position" limit 1
       ) is not null,
       coalesce(n.waiting, 0), coalesce(n.retrying, 0), coalesce(n.unrouted, 0),
       pg_current_xact_id_if_assigned()::text,
       set_config('idle_in_transaction_session_timeout', %(patience)s::text, true)
from written w
left join :"schema".subscriptions s on s.id = w.subscription
left join (
    select c.subscription, sum(c.waiting)::bigint as waiting, sum(c.retrying)::bigint as retrying,
           sum(c.unrouted)::bigint as unrouted
    from :"schema".counts c
    where c.subscription = any(%(subscriptions)s::bigint[])
    group by c.subscription
) n on n.subscription = w.subscription
