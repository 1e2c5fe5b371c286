select d."position", d.state, d.moved
from :"schema".decide(
    %(subscription)s::bigint, %(positions)s::bigint[], %(state)s::text, %(states)s::text[], %(anew)s::boolean
) d
