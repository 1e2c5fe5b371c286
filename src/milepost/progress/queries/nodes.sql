-- Every server that lives and can be reached from this machine, the first that came first.
select n.address, n.version, n.since from :"schema".nodes n where n.until >= :"schema".clock() and (n.machine is null or n.machine = %(machine)s::text)
order by n.since, n.id
