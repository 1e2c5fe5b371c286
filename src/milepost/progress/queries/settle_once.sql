select h.place, s.again
from :"schema".settle_once(
    %(id)s::uuid, %(subscriptions)s::text::bigint[], %(positions)s::text::bigint[], %(claims)s::text::uuid[],
    %(outcomes)s::text::text[], array(select jsonb_array_elements_text(%(reasons)s::text::jsonb)),
    array(select jsonb_array_elements_text(%(errors)s::text::jsonb)), %(after)s::float8, %(seconds)s::float8
) s
cross join lateral unnest(s.held) h(place)
