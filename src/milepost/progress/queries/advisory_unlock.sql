select pg_advisory_unlock(k.key) from unnest(%(keys)s::bigint[]) as k(key)
