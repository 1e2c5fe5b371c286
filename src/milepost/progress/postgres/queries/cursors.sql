-- name: exchange
-- What is written in a handler's transaction holds the lane until the commit: a process that is stopped before that
-- must not hold it for ever.
select :"schema".exchange(
    %(subscription)s::bigint, %(lane)s::integer, %(life)s::uuid, %(epoch)s::bigint, %(revision)s::bigint,
    %(writes)s::boolean, %(position)s::bigint, %(ahead)s::bigint[], %(moves)s::jsonb, %(keep_done)s::float8,
    %(succeeded)s::bigint, %(failed)s::bigint, %(released)s::boolean,
    %(ask)s::jsonb, %(stall_after)s::bigint, %(continues)s::boolean
)::text, pg_current_xact_id_if_assigned()::text,
set_config('idle_in_transaction_session_timeout', %(patience)s::text, true)


-- name: write_cursors
-- The usual exchange: cursors and nothing else, of lanes of any subscriptions. A lane that is missing in what it returns
-- has another owner, or was taken in another life of the server. In a transaction of a handler's, what is written here
-- holds the lane until the commit: a process that is stopped before that must not hold it for ever.
select w.subscription, w.lane, w.epoch, w.revision, w.now, w.streak, w.stalled, w.has_rows,
       w.waiting, w.retrying, w.unrouted, pg_current_xact_id_if_assigned()::text,
       set_config('idle_in_transaction_session_timeout', %(patience)s::text, true)
from :"schema".write_cursors(
    %(subscriptions)s::bigint[], %(lanes)s::integer[], %(lives)s::uuid[], %(epochs)s::bigint[],
    %(revisions)s::bigint[], %(positions)s::bigint[], %(aheads)s::text[]) w


-- name: memories
select m.number, m.lane, m.ranges
from :"schema".memories m
where m.subscription = %(subscription)s::bigint
  and exists (select from :"schema".replays r where r.subscription = m.subscription)


-- name: beyond
select b.subscription, b."group", b.name, b.positions, b.deliveries from :"schema".beyond(%(survived)s::bigint) b
