-- name: filters
-- What subscriptions with a filter select.
select s."group", s.name, d.selects
from :"schema".subscriptions s
join :"schema".definitions d on d.subscription = s.id and d.number = s.definition
where d.selects like '%%"where":"%%'
order by s."group", s.name
limit %(most)s::bigint


-- name: newest
select coalesce(max(m."position"), 0) from :"schema".messages m


-- name: rights
-- Which rights in the schema this user has, in the order in which they are asked about.
select coalesce(
    has_schema_privilege(n.oid, 'usage')
    and case r.kind
        when 'table' then has_table_privilege(c.oid, r.privilege)
        when 'sequence' then has_sequence_privilege(c.oid, r.privilege)
        when 'function' then has_function_privilege(p.oid, r.privilege)
    end, false)
from unnest(%(kinds)s::text[], %(names)s::text[], %(privileges)s::text[])
    with ordinality r(kind, name, privilege, place)
left join pg_namespace n on n.nspname = :'schema'
left join pg_class c on c.relnamespace = n.oid and c.relname = r.name and r.kind in ('table', 'sequence')
left join pg_proc p on p.pronamespace = n.oid and p.proname = split_part(r.name, '(', 1) and r.kind = 'function'
order by r.place


-- name: sample
-- The newest messages of some streams, or else of some categories, or else of all, each found by an index; what of them
-- a definition looks at.
select s.name, m.type, m.properties::text
from (
    (
        select m."position", m.stream_id, m.type, m.properties
        from :"schema".messages m
        where %(everything)s::boolean
        order by m."position" desc
        limit %(each)s::bigint
    )
    union all
    select m.*
    from unnest(%(hashes)s::integer[]) c(hash)
    cross join lateral (
        select m."position", m.stream_id, m.type, m.properties
        from :"schema".messages m
        -- Written so that no plan walks the whole log for a category that has few messages.
        where m.category_hash >= c.hash and m.category_hash <= c.hash
        order by m.category_hash desc, m."position" desc
        limit %(each)s::bigint
    ) m
    union all
    select m.*
    from unnest(%(streams)s::text[]) n(name)
    cross join lateral (select s.stream_id from :"schema".streams s where s.name = n.name limit 1) s
    cross join lateral (
        select m."position", m.stream_id, m.type, m.properties
        from :"schema".messages m
        where m.stream_id = s.stream_id
        order by m.version desc
        limit %(each)s::bigint
    ) m
) m
cross join lateral (select s.name from :"schema".streams s where s.stream_id = m.stream_id limit 1) s
order by m."position" desc
limit %(most)s::bigint


-- name: schema_clock
select date_part('epoch', :"schema".clock() - clock_timestamp())


-- name: subscriptions
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


-- name: tables
-- How full of dead rows each table is, by what PostgreSQL counts anyway, and how many lanes there are.
select t.relname, t.n_live_tup, t.n_dead_tup, pg_table_size(t.relid),
       (select coalesce(sum(s.lanes), 0) from :"schema".subscriptions s)
from pg_stat_user_tables t
where t.schemaname = :'schema'
order by t.n_dead_tup desc, t.relname


-- name: workers
-- Who works, or did and has not left, the most silent first.
select w.id, w."group", w.program, date_part('epoch', :"schema".clock() - w.beat), date_part('epoch', w.lease),
       (select count(*) from :"schema".lanes l where l.owner = w.id)
from :"schema".workers w
order by w.beat
limit %(most)s::bigint
