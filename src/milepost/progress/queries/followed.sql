select f.log, f.horizon, f."position", f.id, :"schema".life()
from :"schema".followed f
order by f.horizon desc
limit 1
