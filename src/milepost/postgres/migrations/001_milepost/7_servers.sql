-- Tokens: who may do what over the network. Only a hash of each is kept.

create table :"schema".tokens (
    id bigint generated always as identity primary key,
    name text not null,
    hash bytea not null unique,
    roles text[] not null,
    groups text[] check (cardinality(groups) > 0), -- of which subscriptions; null: all
    categories text[] check (cardinality(categories) > 0), -- of which streams; null: all
    created timestamptz not null default :"schema".clock(),
    expires timestamptz, -- from then on it opens nothing; null: never
    last_used timestamptz,
    revoked timestamptz
);

-- The name of a token that was revoked may be given again; one that has expired is revoked then.
create unique index tokens_name on :"schema".tokens (name) where revoked is null;

-- Sessions of the console that somebody ended: the nonces of their cookies, until these are worth nothing anyway.
create table :"schema".ended_sessions (
    token bigint not null references :"schema".tokens,
    nonce bytea not null,
    until timestamptz not null,
    primary key (token, nonce)
);

create index ended_sessions_until on :"schema".ended_sessions (until);

-- Servers: where consumers elsewhere can connect to. Whoever has not told anything for a while is gone.
create unlogged table :"schema".nodes (
    id text collate "C" primary key,
    address text not null,
    machine text, -- where that address can be reached; null: anywhere
    version text not null,
    since timestamptz not null,
    until timestamptz not null
) with (fillfactor = 50);
