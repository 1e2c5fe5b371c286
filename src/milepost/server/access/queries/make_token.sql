insert into :"schema".tokens (name, hash, roles)
values (%(name)s::text, %(hash)s::bytea, %(roles)s::text[])
