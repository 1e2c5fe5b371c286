-- A worker no longer lives, and has no lanes.
with gone as (
    delete from :"schema".workers w where w.id = %(worker)s::text
)
update :"schema".lanes l set owner = null, since = :"schema".clock() where l.owner = %(worker)s::text
