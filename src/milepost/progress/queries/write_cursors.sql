-- The usual exchange: cursors and nothing else, of lanes of any subscriptions. A lane that is missing in what it returns
-- has another owner, or was taken in another life of the server. In a transaction of a handler's, what is written here
-- holds the lane until the commit: a process that is stopped before that must not hold it for ever.
select w.subscription, w.lane, w.epoch, w.revision, w.now, w.streak, w.stalled, w.has_rows,
       w.waiting, w.retrying, w.unrouted, pg_current_xact_id_if_assigned()::text,
       set_config('idle_in_transaction_session_timeout', %(patience)s::text, true)
from :"schema".write_cursors(
    %(subscriptions)s::bigint[], %(lanes)s::integer[], %(lives)s::uuid[], %(epochs)s::bigint[],
    %(revisions)s::bigint[], %(positions)s::bigint[], %(aheads)s::text[]) w
