select n.id from (select :"schema".named(%(group)s::text, %(name)s::text) as id) n where n.id is not null
