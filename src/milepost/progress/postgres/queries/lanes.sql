-- name: balance
select b.subscription, b.lane, b.gives
from :"schema".balance(
    %(worker)s::text, %(wants)s::bigint[], %(sizes)s::integer[], %(held_in)s::bigint[], %(held_lanes)s::integer[]
) b
order by b.subscription, b.lane


-- name: beat
select :"schema".beat(%(worker)s::text, %(group)s::text, %(program)s::text, %(lease)s::interval)


-- name: take
-- Nothing for a worker whose definition is not the newest: it would pass what only a newer program handles; nothing for
-- one that does not know what people have done meanwhile; and nothing for one that reads the log in another life of the
-- server. The lock keeps the first two out while lanes are taken.
with current as materialized (
    select s.definition, s.acted, :"schema".life() as life
    from :"schema".subscriptions s where s.id = %(subscription)s::bigint for share
), taken as materialized (
    select case
               when c.definition > %(number)s::integer or c.acted > %(acted)s::bigint or c.life <> %(log_life)s::uuid
               then null
               else :"schema".take(%(subscription)s::bigint, %(lanes)s::integer[])
           end as lanes,
           case when c.definition > %(number)s::integer then c.definition end as newer,
           c.life
    from current c
), told as (
    update :"schema".serving v
    set lanes = v.lanes || array(
        select (l.value ->> 'lane')::integer from json_array_elements(t.lanes -> 'lanes') l(value))
    from taken t
    where v.subscription = %(subscription)s::bigint and v.worker = %(worker)s::text and t.lanes is not null
)
select t.lanes::text, t.newer, t.life from taken t


-- name: leave
-- A worker no longer lives, and has no lanes: others may have them, and are told.
with gone as (
    delete from :"schema".workers w where w.id = %(worker)s::text
), released as (
    update :"schema".lanes l set owner = null, since = :"schema".clock() where l.owner = %(worker)s::text
)
select pg_notify(:'schema', 'act')


-- name: let_go
-- A worker has nothing more of a lane.
update :"schema".serving v set lanes = array_remove(v.lanes, %(lane)s::integer)
where v.subscription = %(subscription)s::bigint and v.worker = %(worker)s::text and %(lane)s::integer = any (v.lanes)


-- name: release
-- The last revision of an owner that leaves in good order, with nothing more to write. Its worker has nothing more of it.
with let_go as (
    update :"schema".serving v set lanes = array_remove(v.lanes, %(lane)s::integer)
    where v.subscription = %(subscription)s::bigint and v.worker = %(worker)s::text and %(lane)s::integer = any (v.lanes)
)
insert into :"schema".cursors (subscription, lane, revision, epoch, released, "position", ahead)
select c.subscription, c.lane, c.revision + 1, c.epoch, true, c."position", c.ahead
from :"schema".cursors c
where c.subscription = %(subscription)s::bigint and c.lane = %(lane)s::integer
  and c.revision = %(revision)s::bigint and c.epoch = %(epoch)s::bigint
  and exists (select from :"schema".server_life l where l.token = %(life)s::uuid)
returning revision


-- name: release_lanes
-- Others may have these lanes, and are told.
with released as (
    update :"schema".lanes l
    set owner = null, since = :"schema".clock()
    where l.subscription = %(subscription)s::bigint and l.lane = any (%(lanes)s::integer[])
      and l.owner = %(worker)s::text
    returning l.lane
)
select pg_notify(:'schema', 'act') from (select from released limit 1) r


-- name: look
-- Subscriptions as workers of these definitions have to know them; one that was deleted is missing, and so is one whose
-- definition a crash took back. Whoever asks says what it does for them. Rows
-- that were kept for long enough go, also when nothing else happens.
select :"schema".opened(g.id, g.number)::text,
       :"schema".tell(g.id, %(worker)s::text, g.number, g.runs, g.lanes, %(lease)s::interval, g.waits),
       :"schema".prune_done(g.id, :"schema".clock() - make_interval(secs => coalesce(g.keep_done, 0)))
from jsonb_to_recordset(%(serving)s::jsonb)
    as g(id bigint, number integer, runs boolean, lanes integer[], waits boolean, keep_done float8)
join :"schema".definitions d on d.subscription = g.id and d.number = g.number


-- name: recover
-- A success ends a streak of failures.
select :"schema".judge(%(subscription)s::bigint, 1, 0, 0, 1)


-- name: report
-- What a worker does. What workers have left behind that are gone goes after a day.
with old as (
    delete from :"schema".reports r where r.until < :"schema".clock() - interval '1 day'
)
insert into :"schema".reports (subscription, worker, until, rate, in_flight, flights, attempts, handling_seconds, latencies,
    stopped, error, error_at)
select g.subscription, %(worker)s::text, :"schema".clock() + %(during)s::interval, g.rate, g.in_flight, g.flights, g.attempts,
       g.handling_seconds, g.latencies, g.stopped, g.error, to_timestamp(g.error_at)
from jsonb_to_recordset(%(reports)s::jsonb)
    as g(subscription bigint, rate float8, in_flight integer, flights jsonb, attempts bigint, handling_seconds float8,
         latencies float8[], stopped jsonb, error text, error_at float8)
on conflict (subscription, worker) do update
set told = :"schema".clock(), until = excluded.until, rate = excluded.rate, in_flight = excluded.in_flight,
    flights = excluded.flights, attempts = excluded.attempts, handling_seconds = excluded.handling_seconds,
    latencies = excluded.latencies, stopped = excluded.stopped,
    error = excluded.error, error_at = excluded.error_at


-- name: depart
delete from :"schema".serving v where v.worker = %(worker)s::text


-- name: place_lanes
select :"schema".place_lanes(
    %(subscription)s::bigint, %(life)s::uuid, %(barrier)s::text, %(stood)s::jsonb, %(lanes)s::jsonb,
    %(memories)s::jsonb, %(above)s::bigint, %(up_to)s::bigint, %(followers)s::bigint[], %(since)s::timestamptz, %(since_above)s::bigint
)
