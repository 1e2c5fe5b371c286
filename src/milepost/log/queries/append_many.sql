select stream, outcome, version, "position", id::text
from :"schema".write_many(%(batches)s::text::jsonb, %(wake)s::boolean)
