select :"schema".place_lanes(
    %(subscription)s::bigint, %(life)s::uuid, %(barrier)s::text, %(stood)s::jsonb, %(lanes)s::jsonb,
    %(memories)s::jsonb, %(above)s::bigint, %(up_to)s::bigint, %(followers)s::bigint[], %(since)s::timestamptz, %(since_above)s::bigint
)
