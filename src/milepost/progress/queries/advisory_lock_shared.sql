select pg_advisory_lock_shared(k.key) from unnest(%(keys)s::bigint[]) as k(key)
