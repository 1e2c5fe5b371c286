select stream, outcome, version, "position", id::text
from :"schema".write(%(stream)s::text, %(messages)s::text::jsonb, %(expected)s::bigint, %(wake)s::boolean)
