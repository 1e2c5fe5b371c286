with forgotten as (
    delete from :"schema".ended_sessions where until <= :"schema".clock()
)
insert into :"schema".ended_sessions (token, nonce, until)
values (%(token)s::bigint, %(nonce)s::bytea, :"schema".clock() + make_interval(secs => %(seconds)s::float8))
on conflict (token, nonce) do nothing
