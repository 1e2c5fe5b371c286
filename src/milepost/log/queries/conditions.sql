          and (%(any_type)s::boolean or m.type = any(%(types)s::text[]) or m.type ~ %(type_pattern)s::text)
          and (%(since)s::timestamptz is null or m.time >= %(since)s::timestamptz
               or m."position" <= %(since_above)s::bigint)
          and (%(lanes)s::integer is null or mod(m.bucket, %(lanes)s::integer) = any(%(lane_numbers)s::integer[]))
          and (%(where)s::text is null
               or jsonb_path_match(m.properties, %(where)s::text::jsonpath, %(where_values)s::text::jsonb, true))
