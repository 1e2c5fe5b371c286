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
