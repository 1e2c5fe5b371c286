update :"schema".tokens set revoked = :"schema".clock()
where name = %(name)s::text and revoked is null
returning id
