-- name: rows_written
-- What this session has written, by table: on a new connection that is what its only transaction wrote, also what was
-- rolled back to a savepoint. Null where the server does not count.
select case when current_setting('track_counts')::boolean then coalesce((
    select json_agg(json_build_object(
               'table', format('%%I.%%I', s.schemaname, s.relname),
               'inserted', s.n_tup_ins, 'updated', s.n_tup_upd, 'deleted', s.n_tup_del)
           order by s.schemaname, s.relname)
    from pg_stat_xact_user_tables s
    where s.n_tup_ins + s.n_tup_upd + s.n_tup_del > 0
), '[]') end::text
