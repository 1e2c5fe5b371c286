-- One mark serves all sleepers, so few are written; those that have passed go.
with passed as (
    delete from :"schema".sleeps s where s.until < (select :"schema".clock() - %(mark)s::interval)
)
insert into :"schema".sleeps (until)
select :"schema".clock() + %(mark)s::interval
where not exists (select from :"schema".sleeps s where s.until >= (select :"schema".clock() + %(cover)s::interval))
on conflict do nothing
