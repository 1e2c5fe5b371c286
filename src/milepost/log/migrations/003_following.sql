-- Which log this is, and which log the progress that is kept here follows: it may be one in another database.
-- oldest: 1

-- It stays the same when the log is restored from a backup.
create table :"schema".identity (
    single boolean primary key default true check (single),
    log uuid not null
);
insert into :"schema".identity (log) values (gen_random_uuid());

-- How far the log had come, as progress knows it; the highest row counts. Where the log is in another database, no
-- cursor is written beyond it, so that progress can tell when the log is behind it. Append-only, as cursors are.
create table :"schema".followed (
    horizon bigint primary key,
    log uuid not null,
    "position" bigint,  -- of the newest message up to there; none: there was none
    id uuid
);
insert into :"schema".followed (horizon, log)
select 0, i.log from :"schema".identity i
where exists (select from :"schema".subscriptions);
