-- Before anybody can store a horizon of the new life, which needs its token.
insert into :"schema".server_life (token, base)
select gen_random_uuid(), h."position" from :"schema".horizon h
on conflict do nothing
