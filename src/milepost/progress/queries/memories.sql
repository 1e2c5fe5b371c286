select m.number, m.lane, m.ranges
from :"schema".memories m
where m.subscription = %(subscription)s::bigint
  and exists (select from :"schema".replays r where r.subscription = m.subscription)
