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
