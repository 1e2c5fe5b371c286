-- Moves the clock, and with it the last beat of workers of this process. Whoever sleeps by the old time wakes up.
with clock as (update :"schema".moved m set by = m.by + %(by)s),
     alive as (update :"schema".workers w set beat = w.beat + %(by)s where starts_with(w.id, %(own)s))
select pg_notify(:'schema', ''), pg_notify(:'schema', 'act')
