-- A server lives. What others have left behind that are gone goes after an hour.
with old as (
    delete from :"schema".nodes n where n.until < :"schema".clock() - interval '1 hour'
)
insert into :"schema".nodes (id, address, machine, version, since, until)
values (%(id)s::text, %(address)s::text, %(machine)s::text, %(version)s::text, :"schema".clock(), :"schema".clock() + %(during)s::interval)
on conflict (id) do update set until = excluded.until
