select k.key, pg_try_advisory_lock(k.key) from unnest(%(keys)s::bigint[]) as k(key)
