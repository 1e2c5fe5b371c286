-- Subscriptions as workers of these definitions have to know them; one that was deleted is missing, and so is one whose
-- definition a crash took back. Whoever asks says what it does for them. Rows
-- that were kept for long enough go, also when nothing else happens.
select :"schema".opened(g.id, g.number)::text,
       :"schema".tell(g.id, %(worker)s::text, g.number, g.runs, g.lanes, %(lease)s::interval, g.waits),
       :"schema".prune_done(g.id, :"schema".clock() - make_interval(secs => coalesce(g.keep_done, 0)))
from jsonb_to_recordset(%(serving)s::jsonb)
    as g(id bigint, number integer, runs boolean, lanes integer[], waits boolean, keep_done float8)
join :"schema".definitions d on d.subscription = g.id and d.number = g.number
