-- name: append
select stream, outcome, version, "position", id::text
from :"schema".write(%(stream)s::text, %(messages)s::text::jsonb, %(expected)s::bigint, %(wake)s::boolean)


-- name: append_many
select stream, outcome, version, "position", id::text
from :"schema".write_many(%(batches)s::text::jsonb, %(wake)s::boolean)


-- name: last_version
select :"schema".last_version(%(stream)s::text)
