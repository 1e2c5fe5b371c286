select name, roles, groups, categories, created, expires, last_used, revoked,
       revoked is null and (expires is null or expires > :"schema".clock()) as in_force
from :"schema".tokens order by name, id
