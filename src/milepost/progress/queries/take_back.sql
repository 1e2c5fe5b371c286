select :"schema".take_back(%(subscription)s::bigint)
