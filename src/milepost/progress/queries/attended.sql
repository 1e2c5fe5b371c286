-- What the owner of a subscription has told last, and the first message that no consumer takes.
select a.worker, a.at, a.statistics::text, u."position", u.since, date_part('epoch', :"schema".clock())
from (select) one
left join lateral (
    select a.worker, a.at, a.statistics
    from :"schema".attending a
    where a.subscription = %(subscription)s::bigint and a.owns and a.until >= :"schema".clock()
    order by a.at desc
    limit 1
) a on true
left join lateral (
    select d."position", d.since
    from :"schema".deliveries d
    where d.subscription = %(subscription)s::bigint and d.lane = 0 and d.state = 'unrouted'
    order by d."position"
    limit 1
) u on true
