-- Which rights in the schema this user has, in the order in which they are asked about.
select coalesce(
    has_schema_privilege(n.oid, 'usage')
    and case r.kind
        when 'table' then has_table_privilege(c.oid, r.privilege)
        when 'sequence' then has_sequence_privilege(c.oid, r.privilege)
        when 'function' then has_function_privilege(p.oid, r.privilege)
    end, false)
from unnest(%(kinds)s::text[], %(names)s::text[], %(privileges)s::text[])
    with ordinality r(kind, name, privilege, place)
left join pg_namespace n on n.nspname = :'schema'
left join pg_class c on c.relnamespace = n.oid and c.relname = r.name and r.kind in ('table', 'sequence')
left join pg_proc p on p.pronamespace = n.oid and p.proname = split_part(r.name, '(', 1) and r.kind = 'function'
order by r.place
