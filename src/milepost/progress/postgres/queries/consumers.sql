-- name: attend
-- What a process with consumers tells. What others have left behind that are gone goes after an hour.
with old as (
    delete from :"schema".attending a where a.until < :"schema".clock() - interval '1 hour'
)
insert into :"schema".attending (subscription, worker, until, at, acted, owns, consumers, statistics, node)
values (%(subscription)s::bigint, %(worker)s::text, :"schema".clock() + %(during)s::interval, :"schema".clock(),
        %(acted)s::bigint, %(owns)s::boolean, %(consumers)s::integer, %(statistics)s::jsonb, %(node)s::text)
on conflict (subscription, worker) do update
set until = excluded.until, at = excluded.at, acted = excluded.acted, owns = excluded.owns,
    consumers = excluded.consumers, statistics = excluded.statistics, node = excluded.node


-- name: attend_no_more
-- A process does nothing any more for the consumers of a subscription.
with told as (
    delete from :"schema".attending a where a.subscription = %(subscription)s::bigint and a.worker = %(worker)s::text
)
delete from :"schema".serving v where v.subscription = %(subscription)s::bigint and v.worker = %(worker)s::text


-- name: attended
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
