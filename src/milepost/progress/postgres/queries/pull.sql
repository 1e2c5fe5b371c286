-- name: pull
select :"schema".pull(
    %(group)s::text, %(name)s::text, %(limit)s::integer, %(bytes)s::bigint, %(seconds)s::float8, %(consumer)s::text,
    %(own)s::boolean, %(page)s::text::jsonb, %(positions)s::text::bigint[], %(sizes)s::text::integer[],
    array(select jsonb_array_elements_text(%(keys)s::text::jsonb))
)::text


-- name: settle
select unnest(:"schema".settle_all(
    %(subscriptions)s::text::bigint[], %(positions)s::text::bigint[], %(claims)s::text::uuid[],
    %(outcomes)s::text::text[], array(select jsonb_array_elements_text(%(reasons)s::text::jsonb)),
    array(select jsonb_array_elements_text(%(errors)s::text::jsonb)), %(after)s::float8, %(seconds)s::float8
))


-- name: settle_once
select h.place, s.again
from :"schema".settle_once(
    %(id)s::uuid, %(subscriptions)s::text::bigint[], %(positions)s::text::bigint[], %(claims)s::text::uuid[],
    %(outcomes)s::text::text[], array(select jsonb_array_elements_text(%(reasons)s::text::jsonb)),
    array(select jsonb_array_elements_text(%(errors)s::text::jsonb)), %(after)s::float8, %(seconds)s::float8
) s
cross join lateral unnest(s.held) h(place)


-- name: expire_claims
select e."position", e.seconds, e.state, e.attempts, e.due, e.reason
from :"schema".expire_claims(%(subscription)s::bigint, %(limit)s::integer) e
