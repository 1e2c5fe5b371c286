-- Positions between two that are older than a moment: messages are numbered nearly, not exactly, in order of time.
select m."position", m."position"
from :"schema".messages m
where m."position" > %(low)s and m."position" <= %(high)s and m.time < %(moment)s
order by m."position"
