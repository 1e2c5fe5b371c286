-- The first program says which log is followed; later ones remove what is old, but for the newest of that.
with passed as (
    delete from :"schema".followed f
    where f.horizon in (
        select g.horizon from :"schema".followed g
        where g.horizon < (
            select max(n.horizon) from :"schema".followed n where n.at < :"schema".clock() - interval '10 minutes')
        for update skip locked)
)
insert into :"schema".followed (horizon, log)
select 0, %(log)s::uuid
where not exists (select from :"schema".followed)
on conflict do nothing
