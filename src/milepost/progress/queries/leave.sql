-- A worker no longer lives, and has no lanes: others may have them, and are told.
with gone as (
    delete from :"schema".workers w where w.id = %(worker)s::text
), released as (
    update :"schema".lanes l set owner = null, since = :"schema".clock() where l.owner = %(worker)s::text
)
select pg_notify(:'schema', 'act')
