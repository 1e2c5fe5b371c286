-- What a worker does. What workers have left behind that are gone goes after a day.
with old as (
    delete from :"schema".reports r where r.until < :"schema".clock() - interval '1 day'
)
insert into :"schema".reports (subscription, worker, until, rate, in_flight, flights, attempts, handling_seconds, latencies,
    stopped, error, error_at)
select g.subscription, %(worker)s::text, :"schema".clock() + %(during)s::interval, g.rate, g.in_flight, g.flights, g.attempts,
       g.handling_seconds, g.latencies, g.stopped, g.error, to_timestamp(g.error_at)
from jsonb_to_recordset(%(reports)s::jsonb)
    as g(subscription bigint, rate float8, in_flight integer, flights jsonb, attempts bigint, handling_seconds float8,
         latencies float8[], stopped jsonb, error text, error_at float8)
on conflict (subscription, worker) do update
set told = :"schema".clock(), until = excluded.until, rate = excluded.rate, in_flight = excluded.in_flight,
    flights = excluded.flights, attempts = excluded.attempts, handling_seconds = excluded.handling_seconds,
    latencies = excluded.latencies, stopped = excluded.stopped,
    error = excluded.error, error_at = excluded.error_at
