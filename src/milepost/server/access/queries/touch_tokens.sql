update :"schema".tokens set last_used = :"schema".clock() where id = any(%(ids)s::bigint[])
