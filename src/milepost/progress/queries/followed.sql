select f.log, f.horizon, f."position", f.id
from :"schema".followed f
order by f.horizon desc
limit 1
