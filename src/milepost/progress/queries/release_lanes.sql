-- Others may have these lanes, and are told.
with released as (
    update :"schema".lanes l
    set owner = null, since = :"schema".clock()
    where l.subscription = %(subscription)s::bigint and l.lane = any (%(lanes)s::integer[])
      and l.owner = %(worker)s::text
    returning l.lane
)
select pg_notify(:'schema', 'act') from (select from released limit 1) r
