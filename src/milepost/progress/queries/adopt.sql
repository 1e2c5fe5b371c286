-- The owner of a lane goes by another definition from here on.
update :"schema".definitions d
set positions = array[%(position)s::bigint], aheads = jsonb_build_array(%(ahead)s::bigint[]), since = :"schema".clock()
where d.subscription = %(subscription)s::bigint and d.number = %(number)s::integer
