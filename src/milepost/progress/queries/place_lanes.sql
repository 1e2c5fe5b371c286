select :"schema".place_lanes(
    %(subscription)s::bigint, %(barrier)s::text, %(lanes)s::jsonb, %(above)s::bigint, %(up_to)s::bigint,
    %(since)s::timestamptz
)
