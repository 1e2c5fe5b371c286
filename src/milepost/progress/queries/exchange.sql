select :"schema".exchange(
    %(subscription)s::bigint, %(lane)s::integer, %(epoch)s::bigint, %(revision)s::bigint,
    %(writes)s::boolean, %(position)s::bigint, %(ahead)s::bigint[], %(moves)s::jsonb,
    %(succeeded)s::bigint, %(failed)s::bigint, %(released)s::boolean,
    %(ask)s::jsonb, %(stall_after)s::bigint, %(continues)s::boolean
)::text
