select f.log, f.horizon, f."position", f.id, (select l.token from :"schema".server_life l)
from :"schema".followed f
order by f.horizon desc
limit 1
