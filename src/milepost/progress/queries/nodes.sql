-- Every server that lives, the first that came first.
select n.address, n.version, n.since from :"schema".nodes n where n.until >= :"schema".clock() order by n.since, n.id
