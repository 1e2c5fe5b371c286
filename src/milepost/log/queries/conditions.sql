          and (%(any_type)s::boolean or m.type = any(%(types)s::text[]) or m.type ~ %(type_pattern)s::text)
          and (%(since)s::timestamptz is null or m.time >= %(since)s::timestamptz
               or m."position" <= %(since_above)s::bigint)
          and (%(lanes)s::boolean[] is null
               or (%(lanes)s::boolean[])[mod(m.bucket, cardinality(%(lanes)s::boolean[])) + 1])
          and (%(where)s::text is null
               or jsonb_path_match(m.properties, %(where)s::text::jsonpath, %(where_values)s::text::jsonb, true))
