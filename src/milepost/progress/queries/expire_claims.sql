select e."position", e.seconds, e.state, e.attempts, e.due, e.reason
from :"schema".expire_claims(%(subscription)s::bigint, %(limit)s::integer) e
