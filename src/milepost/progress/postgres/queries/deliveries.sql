-- name: choose_deliveries
-- Positions of the deliveries that are meant, in order, with their states and revisions, among the next so many of a subscription, and up to where that
-- was looked for: by the primary key, whatever the others are. None: there are no further ones.
select array_agg(s."position" order by s."position") filter (where s.is_meant),
       array_agg(s.state order by s."position") filter (where s.is_meant),
       array_agg(s.revision order by s."position") filter (where s.is_meant),
       case when count(*) = %(span)s::bigint then max(s."position") end
from (
    select d."position", d.state, d.revision,
           d.state = any (%(states)s::text[])
           and (%(key)s::text is null or d.key = %(key)s::text)
           and (%(reason)s::text is null or strpos(lower(d.reason), lower(%(reason)s::text)) > 0) as is_meant
    from :"schema".deliveries d
    where d.subscription = %(subscription)s::bigint
      and d."position" > %(after)s::bigint and d."position" <= %(up_to)s::bigint
    order by d."position"
    limit %(span)s::bigint
) s


-- name: decide
-- What comes of a decision about deliveries; with what each said when it was chosen, if it was not named.
select d."position", d.state, d.moved
from :"schema".decide(
    %(subscription)s::bigint, %(positions)s::bigint[], %(seen)s::text[], %(revisions)s::bigint[], %(state)s::text,
    %(states)s::text[], %(anew)s::boolean
) d


-- name: deliveries_at
-- Deliveries at these positions, in order, for a person. One that waits says the position of the one that its key waits
-- for; others say how many wait behind them. Of a key that is here several times, what waits between two is counted
-- once. Where a subscription was created so that it goes on, nothing waits behind a parked one.
with chosen as materialized (
    select d.*,
           lead(d."position", 1, 9223372036854775807) over (partition by d.lane, d.key order by d."position")
               as following,
           bool_or(d.state not in ('waiting', 'skipped', 'done')) over (partition by d.lane, d.key) as counts
    from unnest(%(positions)s::bigint[]) p("position")
    cross join lateral (
        select d.* from :"schema".deliveries d
        where d.subscription = %(subscription)s::bigint and d."position" = p."position"
        limit 1
    ) d
)
select d."position", d.state, d.key, d.attempts, d.total, d.size, d.since, d.due, d.reason, d.error,
       d.consumer,
       case
           when d.state = 'waiting' then
               case when a.state <> 'waiting' then a."position" else coalesce(h."position", a."position") end
           when d.state = 'parked' and not o.blocks then 0
           when d.state not in ('skipped', 'done') then
               sum(b.waiting) over (partition by d.lane, d.key order by d."position" desc)::bigint
       end
from chosen d
cross join (
    select s.settings ->> 'on_park' is distinct from 'continue' as blocks
    from :"schema".subscriptions s
    where s.id = %(subscription)s::bigint
) o
cross join lateral (
    select count(*) as waiting
    from :"schema".deliveries w
    where d.counts and w.subscription = d.subscription and w.lane = d.lane and w.key = d.key
      and w.state = 'waiting' and w."position" > d."position" and w."position" <= d.following
) b
left join lateral (
    select e."position", e.state
    from :"schema".deliveries e
    where d.state = 'waiting' and e.subscription = d.subscription and e.lane = d.lane and e.key = d.key
      and e.state in ('waiting', 'running', 'retrying', 'unrouted') and e."position" < d."position"
    order by e."position"
    limit 1
) a on true
left join lateral (
    select e."position"
    from :"schema".deliveries e
    where d.state = 'waiting' and e.subscription = d.subscription and e.lane = d.lane and e.key = d.key
      and e.state = 'parked' and o.blocks and e."position" < d."position"
    order by e."position"
    limit 1
) h on true
order by d."position"


-- name: fates
-- What became of deliveries at these positions.
select d."position", d.state, d.attempts, date_part('epoch', d.due), d.reason
from unnest(%(positions)s::bigint[]) p("position")
cross join lateral (
    select d.* from :"schema".deliveries d
    where d.subscription = %(subscription)s::bigint and d."position" = p."position"
    limit 1
) d
