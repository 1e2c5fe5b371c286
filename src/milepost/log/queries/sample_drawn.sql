-- The first half of a sample: what has been drawn by now. The set of lockers is read after it, in a statement of its own.
select case when q.is_called then q.last_value else 0 end,
       (select l.token from :"schema".server_life l),
       (select l.base from :"schema".server_life l),
       pg_postmaster_start_time(),
       exists (select from :"schema".sleeps s where s.until >= (select :"schema".clock() + %(cover)s::interval))
from :"schema".messages_position_seq q
