-- What a test left open would keep its schema from being dropped.
select pg_terminate_backend(a.pid) from pg_stat_activity a where a.application_name = :'schema'
