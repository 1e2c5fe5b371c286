-- The lowest position of a key whose delivery is unsettled.
select least(
    (
        select d."position"
        from :"schema".deliveries d
        where d.subscription = %(subscription)s::bigint and d.lane = %(lane)s::integer and d.key = %(key)s::text
          and d.state in ('waiting', 'running', 'retrying', 'unrouted')
        order by d."position"
        limit 1
    ),
    (
        select d."position"
        from :"schema".deliveries d
        where d.subscription = %(subscription)s::bigint and d.lane = %(lane)s::integer and d.key = %(key)s::text
          and d.state = 'parked'
        order by d."position"
        limit 1
    ))
