-- The second half of a sample: the transactions that may have drawn a position and not ended.
select l.virtualtransaction
from pg_locks l
where l.locktype = 'relation'
  and l.mode = 'RowExclusiveLock'
  and l.granted
  and l.database = (select d.oid from pg_database d where d.datname = current_database())
  and l.relation = to_regclass(format('%%I.messages', :'schema'::text))
