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
