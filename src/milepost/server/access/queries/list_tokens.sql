select name, roles, created, last_used, revoked from :"schema".tokens order by name, id
