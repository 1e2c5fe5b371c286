delete from :"schema".nodes n where n.id = %(id)s::text
