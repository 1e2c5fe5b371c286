-- How far positions are drawn, and when the newest message was appended.
select s.last_value, s.is_called, m."time"
from :"schema".messages_position_seq s
left join lateral (
    select m."time" from :"schema".messages m order by m."position" desc limit 1
) m on true
