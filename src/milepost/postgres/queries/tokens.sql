-- name: end_session
with forgotten as (
    delete from :"schema".ended_sessions where until <= :"schema".clock()
)
insert into :"schema".ended_sessions (token, nonce, until)
values (%(token)s::bigint, %(nonce)s::bytea, :"schema".clock() + make_interval(secs => %(seconds)s::float8))
on conflict (token, nonce) do nothing


-- name: list_tokens
select name, roles, groups, categories, created, expires, last_used, revoked,
       revoked is null and (expires is null or expires > :"schema".clock()) as in_force
from :"schema".tokens order by name, id


-- name: make_token
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


-- name: revoke_expired_token
update :"schema".tokens set revoked = expires
where name = %(name)s::text and revoked is null and expires <= :"schema".clock()


-- name: revoke_token
update :"schema".tokens set revoked = :"schema".clock()
where name = %(name)s::text and revoked is null
returning id


-- name: tokens_in_force
select t.id, t.name, t.hash, t.roles, t.expires, t.groups, t.categories, array(
    select s.nonce from :"schema".ended_sessions s where s.token = t.id and s.until > :"schema".clock())
from :"schema".tokens t
where t.revoked is null and (t.expires is null or t.expires > :"schema".clock())
order by t.id


-- name: touch_tokens
update :"schema".tokens set last_used = :"schema".clock() where id = any(%(ids)s::bigint[])
