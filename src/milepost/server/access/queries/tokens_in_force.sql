select id, name, hash, roles from :"schema".tokens where revoked is null order by id
