select coalesce(max(m."position"), 0) from :"schema".messages m
