update :"schema".tokens set revoked = expires
where name = %(name)s::text and revoked is null and expires <= :"schema".clock()
