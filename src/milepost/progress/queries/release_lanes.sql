update :"schema".lanes l
set owner = null, since = :"schema".clock()
where l.subscription = %(subscription)s::bigint and l.lane = any (%(lanes)s::integer[])
  and l.owner = %(worker)s::text
