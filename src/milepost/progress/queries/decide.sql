-- What comes of a decision about deliveries; with what each said when it was chosen, if it was not named.
select d."position", d.state, d.moved
from :"schema".decide(
    %(subscription)s::bigint, %(positions)s::bigint[], %(seen)s::text[], %(revisions)s::bigint[], %(state)s::text,
    %(states)s::text[], %(anew)s::boolean
) d
