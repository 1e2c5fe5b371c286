-- All that is remembered of the log, the newest first: what it had come to, and its newest message then.
select f.log, f.horizon, f."position", f.id, f."time", (select l.token from :"schema".server_life l)
from :"schema".followed f
order by f.horizon desc
