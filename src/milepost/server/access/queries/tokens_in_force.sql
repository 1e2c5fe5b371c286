select t.id, t.name, t.hash, t.roles, t.expires, t.groups, t.categories, array(
    select s.nonce from :"schema".ended_sessions s where s.token = t.id and s.until > :"schema".clock())
from :"schema".tokens t
where t.revoked is null and (t.expires is null or t.expires > :"schema".clock())
order by t.id
