-- name: beat_node
-- A server lives. What others have left behind that are gone goes after an hour.
with old as (
    delete from :"schema".nodes n where n.until < :"schema".clock() - interval '1 hour'
)
insert into :"schema".nodes (id, address, machine, version, since, until)
values (%(id)s::text, %(address)s::text, %(machine)s::text, %(version)s::text, :"schema".clock(), :"schema".clock() + %(during)s::interval)
on conflict (id) do update set until = excluded.until


-- name: leave_node
delete from :"schema".nodes n where n.id = %(id)s::text


-- name: nodes
-- Every server that lives and can be reached from this machine, the first that came first.
select n.address, n.version, n.since from :"schema".nodes n where n.until >= :"schema".clock() and (n.machine is null or n.machine = %(machine)s::text)
order by n.since, n.id


-- name: owner_node
-- Who has the lane of a subscription with consumers, as told last, and its address if it is a server that lives
-- and can be reached from this machine.
select a.worker, n.address
from :"schema".attending a
left join lateral (
    select n.address
    from :"schema".nodes n
    where n.address = a.node and n.until >= :"schema".clock() and (n.machine is null or n.machine = %(machine)s::text)
    limit 1
) n on true
where a.subscription = :"schema".named(%(group)s::text, %(name)s::text) and a.owns and a.until >= :"schema".clock()
order by a.at desc
limit 1
