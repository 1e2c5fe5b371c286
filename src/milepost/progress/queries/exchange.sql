-- What is written in a handler's transaction holds the lane until the commit: a process that is stopped before that
-- must not hold it for ever.
select :"schema".exchange(
    %(subscription)s::bigint, %(lane)s::integer, %(life)s::uuid, %(epoch)s::bigint, %(revision)s::bigint,
    %(writes)s::boolean, %(position)s::bigint, %(ahead)s::bigint[], %(moves)s::jsonb, %(keep_done)s::float8,
    %(succeeded)s::bigint, %(failed)s::bigint, %(released)s::boolean,
    %(ask)s::jsonb, %(stall_after)s::bigint, %(continues)s::boolean
)::text, pg_current_xact_id_if_assigned()::text,
set_config('idle_in_transaction_session_timeout', %(patience)s::text, true)
