select b.subscription, b.lane, b.gives
from :"schema".balance(
    %(worker)s::text, %(wants)s::bigint[], %(sizes)s::integer[], %(held_in)s::bigint[], %(held_lanes)s::integer[]
) b
order by b.subscription, b.lane
