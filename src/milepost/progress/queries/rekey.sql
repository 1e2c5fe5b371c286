-- Rows under other keys, by the owner of their lane; null if it is that no longer.
select :"schema".rekey(
    %(subscription)s::bigint, %(life)s::uuid, %(epoch)s::bigint, %(revision)s::bigint, %(number)s::integer,
    %(rows)s::jsonb, %(known)s::jsonb
)::text
