-- name: configure
-- Gives a session of Milepost's own the settings that it relies on, whatever its role says. Not behind a pooler, where
-- they would stay with sessions of others: there the server's process is another than the one that the client was told.
select d.pid = %(pid)s,
       current_setting('default_transaction_isolation') = 'read committed',
       case when d.pid = %(pid)s then
           -- Functions look again after they have waited for a lock.
           set_config('default_transaction_isolation', 'read committed', false)
           -- The only style that the driver reads.
           || set_config('DateStyle', 'ISO', false)
           -- Sessions in the pool, and those that listen, have nothing to do for long.
           || set_config('idle_session_timeout', '0', false)
           -- Plans use the indexes, also those that are made when there is nothing yet, and are kept. What has no index
           -- is tiny, but counts as dear then, and would be compiled for it.
           || set_config('enable_seqscan', 'off', false)
           || set_config('enable_bitmapscan', 'off', false)
           || set_config('jit', 'off', false)
       end
from (select pg_backend_pid() as pid) d


-- name: log_problems
-- What the horizon relies on, where it does not hold: a line for a person each.
select format('sequence %%s has CACHE %%s: positions would be drawn ahead and messages lost; run: alter sequence %%s cache 1',
              s.seqrelid::regclass, s.seqcache, s.seqrelid::regclass)
from pg_sequence s
where s.seqrelid = to_regclass(format('%%I.messages_position_seq', :'schema'::text))
  and s.seqcache <> 1
union all
select format('column position of %%I.messages is not drawn by its own default inside the INSERT: messages would be lost',
              :'schema'::text)
where not exists (
    select from pg_attribute a
    where a.attrelid = to_regclass(format('%%I.messages', :'schema'::text))
      and a.attname = 'position' and a.attidentity = 'a')
union all
select format('%%I.messages has no sequence of its own for position', :'schema'::text)
where pg_get_serial_sequence(format('%%I.messages', :'schema'::text), 'position')
      is distinct from format('%%I.messages_position_seq', :'schema'::text)
union all
select format('%%I.%%I is missing: appends of an older snapshot would not be noticed', :'schema'::text, wanted.name)
from unnest(array['messages_stream_version', 'messages_id']) as wanted(name)
where not exists (
    select from pg_constraint c
    where c.conrelid = to_regclass(format('%%I.messages', :'schema'::text))
      and c.conname = wanted.name and c.contype = 'u')
