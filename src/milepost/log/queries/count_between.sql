select count(*) from :"schema".messages m where m."position" > %(above)s::bigint and m."position" <= %(up_to)s::bigint
