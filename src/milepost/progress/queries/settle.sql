select unnest(:"schema".settle_all(
    %(subscriptions)s::text::bigint[], %(positions)s::text::bigint[], %(claims)s::text::uuid[],
    %(outcomes)s::text::text[], array(select jsonb_array_elements_text(%(reasons)s::text::jsonb)),
    array(select jsonb_array_elements_text(%(errors)s::text::jsonb)), %(after)s::float8, %(seconds)s::float8
))
