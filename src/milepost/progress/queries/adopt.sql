-- The owner of a lane goes by another definition from here on, and nobody by those between; unless another has taken it.
update :"schema".definitions d
set positions = array[%(position)s::bigint], aheads = jsonb_build_array(%(ahead)s::bigint[]), since = :"schema".clock(),
    adopted = true
where d.subscription = %(subscription)s::bigint and d.number <= %(number)s::integer and not d.adopted
