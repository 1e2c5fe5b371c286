-- The positions and sizes of the next messages of the log, or of some lanes.
select m."position", m.size
from :"schema".messages m
where m."position" > %(low)s and m."position" <= %(high)s
  {{lanes}}
order by m."position"
limit %(limit)s
