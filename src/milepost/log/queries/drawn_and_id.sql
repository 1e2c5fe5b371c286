-- How far positions have been drawn, and the id of the message at one of them.
select case when q.is_called then q.last_value else 0 end,
       (select m.id from :"schema".messages m where m."position" = %(position)s::bigint)
from :"schema".messages_position_seq q
