-- name: addresses
-- Every subscription, by group and name.
select s."group", s.name from :"schema".subscriptions s order by 1, 2


-- name: create_subscription
select :"schema".create_subscription(
    %(definition)s::jsonb, %(settings)s::jsonb, %(if_exists)s::text, %(program)s::text
)


-- name: declare
select :"schema".declare_subscriptions(
    %(definitions)s::jsonb, %(program)s::text, %(worker)s::text, %(lease)s::interval
)::text


-- name: adopt
-- The owner of a lane goes by another definition from here on, and nobody by those between; unless another has taken it.
update :"schema".definitions d
set positions = array[%(position)s::bigint], aheads = jsonb_build_array(%(ahead)s::bigint[]), since = :"schema".clock(),
    adopted = true
where d.subscription = %(subscription)s::bigint and d.number <= %(number)s::integer and not d.adopted


-- name: delete_subscription
select :"schema".delete_subscription(%(subscription)s::bigint, %(barrier)s::text)


-- name: find
select :"schema".opened(s.id, s.definition)::text
from :"schema".subscriptions s
where s."group" = %(group)s::text and s.name = %(name)s::text


-- name: known
-- The names of a group's subscriptions, and those that they had before.
select n.name
from :"schema".subscriptions s
cross join lateral unnest(s.former || s.name) n(name)
where s."group" = %(group)s::text


-- name: set_limits
-- A limit that is null is taken back.
with changed as (
    update :"schema".subscriptions s
    set limits = jsonb_strip_nulls(s.limits || %(limits)s::jsonb), acted = s.acted + 1
    where s.id = %(subscription)s::bigint
    returning s.id
)
select pg_notify(:'schema', 'act') from changed


-- name: set_status
select :"schema".set_status(%(subscription)s::bigint, %(status)s::text)


-- name: since
select s.since, s.since_above from :"schema".subscriptions s where s.id = %(subscription)s::bigint


-- name: standings
-- How subscriptions stand, all or one of them, and of each lane how far it is and which live worker has it.
with live as materialized (
    select w.id from :"schema".workers w where w.beat + w.lease >= :"schema".clock()
)
select json_build_object(
    'id', s.id, 'group', s."group", 'name', s.name, 'status', s.status, 'stalled', s.stalled,
    'barrier', case when s.barrier_until >= :"schema".clock() then s.barrier end,
    'waiting', n.waiting, 'retrying', n.retrying, 'unrouted', n.unrouted, 'parked', n.parked, 'told', t.told,
    'cursors', l.cursors, 'owners', o.owners, 'holders', v.holders, 'outdated', coalesce(v.outdated, '[]'),
    'replays', (select json_object_agg(r.lane, r.ranges) from :"schema".replays r where r.subscription = s.id),
    'stopped', coalesce((select json_agg(t) from :"schema".stopped_lanes(s) t), '[]'),
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
        'in_flight', coalesce(sum(r.in_flight) filter (where r.until >= :"schema".clock()), 0)
            + (select count(*) from :"schema".deliveries d where d.subscription = s.id and d.claim is not null),
        'attempts', coalesce(sum(r.attempts), 0), 'handling_seconds', coalesce(sum(r.handling_seconds), 0),
        'latencies', coalesce((
            select json_agg(p.seconds) from :"schema".reports t cross join lateral unnest(t.latencies) p(seconds)
            where t.subscription = s.id and t.until >= :"schema".clock()), '[]'),
        'error', (array_agg(r.error order by r.error_at desc) filter (where r.error is not null))[1],
        'error_at', max(r.error_at)) as told
    from :"schema".reports r
    where r.subscription = s.id
) t
cross join lateral (
    select json_build_object(
        'positions', array_agg(c."position" order by g.lane),
        'aheads', json_object_agg(g.lane, c.ahead) filter (where c.ahead <> '{}')) as cursors
    from generate_series(0, s.lanes - 1) g(lane)
    -- A look each, not a pass over all revisions: those that nobody could remove yet may be many.
    cross join lateral (
        select c."position", c.ahead
        from :"schema".cursors c
        where c.subscription = s.id and c.lane = g.lane
        order by c.revision desc
        limit 1
    ) c
) l
cross join lateral (
    select json_agg(json_build_object('worker', w.id, 'lanes', o.lanes, 'since', o.since)) as owners
    from (
        select o.owner, array_agg(o.lane) as lanes, array_agg(o.since) as since
        from :"schema".lanes o
        where o.subscription = s.id and o.lane < s.lanes
        group by o.owner
    ) o
    left join live w on w.id = o.owner
) o
cross join lateral (
    select json_agg(json_build_object('worker', v.worker, 'lanes', v.lanes) order by v.number)
               filter (where v.lanes <> '{}') as holders,
           json_agg(v.worker order by v.worker) filter (where v.number < s.definition) as outdated
    from :"schema".serving v
    where v.subscription = s.id and (v.until >= :"schema".clock() or v.worker in (select w.id from live w))
) v
cross join lateral (
    select coalesce(sum(a.consumers), 0) as consumers,
           coalesce(json_agg(a.worker order by a.worker) filter (where not a.owns), '[]') as standby
    from :"schema".attending a
    where a.subscription = s.id and a.until >= :"schema".clock()
) a
where %(name)s::text is null or s.id = (select :"schema".named(%(group)s::text, %(name)s::text))
order by s."group", s.name


-- name: life
-- The present life of the server that keeps progress.
select :"schema".life()


-- name: now
select date_part('epoch', :"schema".clock())
