-- Who serves the consumers of a subscription, and does not follow yet what people have changed up to then. Whoever takes
-- its lane later knows it.
select v.worker
from :"schema".serving v
where v.subscription = %(subscription)s::bigint and 0 = any (v.lanes) and :"schema".lives(v.worker, v.until)
  and not exists (
      select from :"schema".attending a
      where a.subscription = v.subscription and a.worker = v.worker and a.acted >= %(acted)s::bigint)
