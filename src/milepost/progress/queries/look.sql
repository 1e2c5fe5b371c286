-- Subscriptions as workers of these definitions have to know them; one that was deleted is missing, and so is one whose
-- definition a crash took back. Whoever asks says what it does for them.
select :"schema".opened(g.id, g.number)::text,
       :"schema".tell(g.id, %(worker)s::text, g.number, g.runs, g.lanes, %(lease)s::interval)
from jsonb_to_recordset(%(serving)s::jsonb) as g(id bigint, number integer, runs boolean, lanes integer[])
join :"schema".definitions d on d.subscription = g.id and d.number = g.number
