with made as (
    select coalesce(
        %(expires)s::timestamptz, :"schema".clock() + make_interval(secs => %(seconds)s::float8)) as expires
)
insert into :"schema".tokens (name, hash, roles, expires, groups, categories)
select %(name)s::text, %(hash)s::bytea, %(roles)s::text[], m.expires, %(groups)s::text[], %(categories)s::text[]
from made m
where m.expires is null
    or m.expires > :"schema".clock() and m.expires <= :"schema".clock() + make_interval(days => %(longest)s::int)
returning id
