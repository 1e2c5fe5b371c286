-- How full of dead rows each table is, by what PostgreSQL counts anyway, and how many lanes there are.
select t.relname, t.n_live_tup, t.n_dead_tup, pg_table_size(t.relid),
       (select coalesce(sum(s.lanes), 0) from :"schema".subscriptions s)
from pg_stat_user_tables t
where t.schemaname = :'schema'
order by t.n_dead_tup desc, t.relname
