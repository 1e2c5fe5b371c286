-- Tokens: who may do what over the network. Only a hash of each is kept.

create table :"schema".tokens (
    id bigint generated always as identity primary key,
    name text not null,
    hash bytea not null unique,
    roles text[] not null,
    created timestamptz not null default :"schema".clock(),
    last_used timestamptz,
    revoked timestamptz
);

-- The name of a token that was revoked may be given again.
create unique index tokens_name on :"schema".tokens (name) where revoked is null;

-- Servers: where consumers elsewhere can connect to. Whoever has not told anything for a while is gone.
create unlogged table :"schema".nodes (
    id text collate "C" primary key,
    address text not null,
    version text not null,
    since timestamptz not null,
    until timestamptz not null
) with (fillfactor = 50);
