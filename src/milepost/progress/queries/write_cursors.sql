-- The usual exchange: cursors and nothing else, of lanes of one subscription. What it tells beside is what every
-- exchange tells. A lane that is missing in what it returns has another owner. In a transaction of a handler's, what
-- is written here holds the lane until the commit: a process that is stopped before that must not hold it for ever.
with given as (
    select g.*
    from unnest(
        %(lanes)s::integer[], %(epochs)s::bigint[], %(revisions)s::bigint[], %(positions)s::bigint[],
        %(aheads)s::text[]
    ) as g(lane, epoch, revision, "position", ahead)
),
written as (
    insert into :"schema".cursors (subscription, lane, revision, epoch, "position", ahead)
    select c.subscription, c.lane, c.revision + 1, c.epoch, g."position", g.ahead::bigint[]
    from given g
    join :"schema".cursors c
      on c.subscription = %(subscription)s::bigint and c.lane = g.lane
     and c.revision = g.revision and c.epoch = g.epoch
    returning lane
)
select w.lane, date_part('epoch', :"schema".clock()), s.streak, s.stalled,
       exists (
           select from :"schema".deliveries d
           where d.subscription = %(subscription)s::bigint and d.lane = w.lane
             and d.state in ('waiting', 'running', 'retrying', 'unrouted')
       ) or exists (
           select from :"schema".deliveries d
           where d.subscription = %(subscription)s::bigint and d.lane = w.lane and d.state = 'parked'
       ),
       n.waiting, n.retrying, n.unrouted, pg_current_xact_id_if_assigned()::text,
       set_config('idle_in_transaction_session_timeout', %(patience)s::text, true)
from written w
left join :"schema".subscriptions s on s.id = %(subscription)s::bigint
cross join (
    select coalesce(sum(c.waiting), 0)::bigint as waiting, coalesce(sum(c.retrying), 0)::bigint as retrying,
           coalesce(sum(c.unrouted), 0)::bigint as unrouted
    from :"schema".counts c
    where c.subscription = %(subscription)s::bigint
) n
