-- Servers: where consumers elsewhere can connect to.
-- oldest: 1

-- Which of the processes with consumers of a subscription others can be sent to.
alter table :"schema".attending add column node text;

-- Whoever has not told anything for a while is gone.
create unlogged table :"schema".nodes (
    id text collate "C" primary key,
    address text not null,
    version text not null,
    since timestamptz not null,
    until timestamptz not null
) with (fillfactor = 50);
