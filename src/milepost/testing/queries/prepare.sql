-- The schema's clock can be moved from now on.
create table :"schema".moved (by interval not null);
insert into :"schema".moved values ('0');
create or replace function :"schema".clock() returns timestamptz
language sql volatile parallel safe
as $$ select clock_timestamp() + (select m.by from :"schema".moved m) $$;
