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

    -- Whatever changes a row of the catalog writes it anew, with the number of a later transaction. Only rows of tables
    -- change by what happens above, so of them it is said what they are.
    perform set_config('tests.fingerprint', md5(string_agg(f.line, E'\n' order by f.line)), false)
    from (
        select format('migrations %s', migrations) as line
        union all
        select format('relation %s %s %s %s %s %s', c.relname, c.relkind, c.relpersistence, c.relacl, c.reloptions,
                      c.reltuples > 0 or c.relallvisible > 0)
        from pg_class c where c.relnamespace = target
        union all
        select format('%s %s %s', r.catalog, count(*), sum(r.xmin::text::bigint))
        from (
            select 'schema' as catalog, n.xmin from pg_namespace n where n.oid = target
            union all
            select 'functions', p.xmin from pg_proc p where p.pronamespace = target
            union all
            select 'constraints', c.xmin from pg_constraint c where c.connamespace = target
            union all
            select 'types', t.xmin from pg_type t where t.typnamespace = target
            union all
            select 'columns', a.xmin from pg_attribute a join pg_class c on c.oid = a.attrelid
            where c.relnamespace = target
            union all
            select 'defaults', d.xmin from pg_attrdef d join pg_class c on c.oid = d.adrelid
            where c.relnamespace = target
            union all
            select 'indexes', i.xmin from pg_index i join pg_class c on c.oid = i.indexrelid
            where c.relnamespace = target
            union all
            select 'sequences', s.xmin from pg_sequence s join pg_class c on c.oid = s.seqrelid
            where c.relnamespace = target
            union all
            select 'triggers', t.xmin from pg_trigger t join pg_class c on c.oid = t.tgrelid
            where c.relnamespace = target
        ) r
        group by r.catalog
    ) f;
end $$;
