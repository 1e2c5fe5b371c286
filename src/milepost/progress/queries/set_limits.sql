-- A limit that is null is taken back.
with changed as (
    update :"schema".subscriptions s
    set limits = jsonb_strip_nulls(s.limits || %(limits)s::jsonb), acted = s.acted + 1
    where s.id = %(subscription)s::bigint
    returning s.id
)
select pg_notify(:'schema', 'act') from changed
