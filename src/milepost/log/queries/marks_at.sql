-- What tells the messages at these positions from any others that were ever there.
select m."position", uuid_send(m.id), timestamptz_send(m.time)
from :"schema".messages m
where m."position" = any(%(positions)s::bigint[])
