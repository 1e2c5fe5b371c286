select pg_advisory_unlock_shared(k.key) from unnest(%(keys)s::bigint[]) as k(key)
