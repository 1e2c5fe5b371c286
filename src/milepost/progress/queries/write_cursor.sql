-- The usual exchange: a cursor and nothing else. What it tells beside is what every exchange tells.
with written as (
    insert into :"schema".cursors (subscription, lane, revision, epoch, "position", ahead)
    select c.subscription, c.lane, c.revision + 1, c.epoch, %(position)s::bigint, %(ahead)s::bigint[]
    from :"schema".cursors c
    where c.subscription = %(subscription)s::bigint and c.lane = %(lane)s::integer
      and c.revision = %(revision)s::bigint and c.epoch = %(epoch)s::bigint
    returning revision
)
select date_part('epoch', :"schema".clock()), s.streak, s.stalled,
       exists (
           select from :"schema".deliveries d
           where d.subscription = %(subscription)s::bigint and d.lane = %(lane)s::integer
             and d.state in ('waiting', 'running', 'retrying', 'unrouted')
       ) or exists (
           select from :"schema".deliveries d
           where d.subscription = %(subscription)s::bigint and d.lane = %(lane)s::integer
             and d.state = 'parked'
       ),
       n.waiting, n.retrying, n.unrouted
from written
left join :"schema".subscriptions s on s.id = %(subscription)s::bigint
cross join (
    select coalesce(sum(c.waiting), 0)::bigint as waiting, coalesce(sum(c.retrying), 0)::bigint as retrying,
           coalesce(sum(c.unrouted), 0)::bigint as unrouted
    from :"schema".counts c
    where c.subscription = %(subscription)s::bigint
) n
