-- Empties the schema that `tests.schema` names: no rows but those of a new schema, sequences at their start.
-- Leaves in `tests.fingerprint` what it does not undo: tables, columns, functions, rights, migrations, statistics.
do $$
declare
    target regnamespace := current_setting('tests.schema')::regnamespace;
    item record;
    migrations text;
begin
    perform set_config('lock_timeout', '20s', true);
    -- No triggers and no foreign keys: they would write again, and ask for an order of the tables.
    perform set_config('session_replication_role', 'replica', true);
    for item in select c.oid::regclass as name from pg_class c
                where c.relnamespace = target and c.relkind = 'r' and c.relname <> 'migrations' loop
        -- A few rows are deleted sooner than a table is truncated. Dead rows stay: PostgreSQL plans for a table that was
        -- never analyzed as if it had ten pages, if it has fewer, so fewer than that change no plan.
        if pg_relation_size(item.name) > 65536 then
            execute format('truncate %s cascade', item.name);
        else
            execute format('delete from %s', item.name);
        end if;
    end loop;
    for item in select s.schemaname, s.sequencename, s.start_value from pg_sequences s
                where s.schemaname::regnamespace = target loop
        perform setval(format('%I.%I', item.schemaname, item.sequencename)::regclass, item.start_value, false);
    end loop;
    execute format('insert into %s.horizon ("position") values (0)', target);
    execute format('insert into %s.identity (log) values (gen_random_uuid())', target);
    execute format('select string_agg(m::text, '','' order by number) from %s.migrations m', target) into migrations;

    -- Who looks at statistics need not wait until this session reports its own.
    perform pg_stat_force_next_flush();

    perform set_config('tests.fingerprint', md5(string_agg(f.line, E'\n' order by f.line)), false)
    from (
        select format('migrations %s', migrations) as line
        union all
        select format('function %s %s %s %s %s', p.oid::regprocedure, p.prosrc, p.proconfig, p.proacl, p.provolatile)
        from pg_proc p where p.pronamespace = target
        union all
        select format('relation %s %s %s %s %s %s %s', c.relname, c.relkind, c.relpersistence, c.relacl, c.reloptions,
                      c.reltuples > 0 or c.relallvisible > 0,
                      case when c.relkind = 'i' then pg_get_indexdef(c.oid) end)
        from pg_class c where c.relnamespace = target
        union all
        select format('column %s %s %s %s %s %s', a.attrelid::regclass, a.attname, a.atttypid::regtype, a.attnotnull,
                      a.attidentity, a.attacl)
        from pg_attribute a join pg_class c on c.oid = a.attrelid
        where c.relnamespace = target and c.relkind = 'r' and a.attnum > 0
        union all
        select format('sequence %s %s %s', s.seqrelid::regclass, s.seqcache, s.seqincrement)
        from pg_sequence s join pg_class c on c.oid = s.seqrelid where c.relnamespace = target
        union all
        select format('default %s %s', d.adrelid::regclass, pg_get_expr(d.adbin, d.adrelid))
        from pg_attrdef d join pg_class c on c.oid = d.adrelid where c.relnamespace = target
        union all
        select format('constraint %s %s', c.conname, pg_get_constraintdef(c.oid))
        from pg_constraint c where c.connamespace = target
        union all
        select format('trigger %s %s', t.tgname, t.tgenabled)
        from pg_trigger t join pg_class c on c.oid = t.tgrelid where c.relnamespace = target
        union all
        select format('schema %s', n.nspacl) from pg_namespace n where n.oid = target
    ) f;
end $$;
