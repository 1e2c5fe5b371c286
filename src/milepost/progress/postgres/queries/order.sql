-- name: rekey
-- Rows under other keys, by the owner of their lane; null if it is that no longer.
select :"schema".rekey(
    %(subscription)s::bigint, %(life)s::uuid, %(epoch)s::bigint, %(revision)s::bigint, %(number)s::integer,
    %(rows)s::jsonb, %(known)s::jsonb
)::text


-- name: reorder
select :"schema".reorder(
    %(subscription)s::bigint, %(definition)s::jsonb, %(rows)s::jsonb, %(program)s::text, %(worker)s::text,
    %(lease)s::interval
)::text


-- name: reorder_created
select :"schema".reorder_created(
    %(subscription)s::bigint, %(barrier)s::text, %(definition)s::jsonb, %(settings)s::jsonb, %(rows)s::jsonb,
    %(program)s::text
)
