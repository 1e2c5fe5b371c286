select *
from :"schema".messages_at(%(positions)s::bigint[], %(life)s::uuid)
