-- The most common types of the whole log with their shares, as PostgreSQL's statistics know them.
select t.type, t.share
from pg_stats s
cross join lateral unnest(s.most_common_vals::text::text[], s.most_common_freqs) as t(type, share)
where s.schemaname = :'schema' and s.tablename = 'messages' and s.attname = 'type'
order by t.type
