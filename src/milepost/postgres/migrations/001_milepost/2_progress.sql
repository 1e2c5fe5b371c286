-- Progress: who works on which lanes, how far each is, and the messages that need attention of their own.

-- One heartbeat a worker. A crash of the server empties it: then nobody lives, and all take their lanes anew.
create unlogged table :"schema".workers (
    id text collate "C" primary key,
    "group" text collate "C" not null,
    program text not null,
    beat timestamptz not null,
    lease interval not null,
    wants bigint[] not null default '{}'  -- the subscriptions that it has handlers for
) with (fillfactor = 50);

-- Who may try which lane. What makes a write valid is not this but the epoch and the revision in cursors.
create table :"schema".lanes (
    subscription bigint not null,
    lane integer not null,
    owner text collate "C",
    since timestamptz not null default :"schema".clock(),
    primary key (subscription, lane)
);
create index lanes_owner on :"schema".lanes (owner);

create table :"schema".subscriptions (
    -- At random: a crash that takes one back gives its number to no other, whose lanes its workers would take.
    id bigint primary key default 1 + ('x' || left(replace(gen_random_uuid()::text, '-', ''), 12))::bit(48)::bigint,
    "group" text collate "C" not null,
    name text collate "C" not null,
    former text[] collate "C" not null default '{}',  -- the names that it had before
    lanes integer not null check (lanes > 0),
    status text collate "C" not null default 'running' check (status in ('running', 'paused')),
    definition integer not null default 1,
    in_code boolean not null default true,  -- declared there; else by whoever created it
    settings jsonb not null default '{}',  -- then: all its options, by their names
    since timestamptz,  -- older messages are passed over, if it began at a time,
    since_above bigint not null default 0,  -- above this position, where that was
    limits jsonb not null default '{}',  -- what operators set beside what the code says
    acted bigint not null default 0,  -- grows with everything that a person does to it: its workers look again
    forced bigint not null default 0,  -- by then whoever had something out was to give it back without waiting
    -- While somebody brings its lanes to where they can be changed: nothing runs, or nothing beyond a position. It
    -- ends by itself, should that somebody vanish.
    barrier text,  -- what for, in words
    barrier_until timestamptz,
    barrier_at bigint,
    barrier_yields boolean not null default false,  -- all go on, until what ran when it was set has ended
    streak bigint not null default 0,  -- attempts that failed since the last success
    stalled text,  -- why, in words
    created timestamptz not null default :"schema".clock(),
    -- Whether rows still have their keys by an order before: whoever has the lane gives them theirs first.
    rekeys boolean not null default false,
    headed text,  -- for which cursor, definition and policy the heads of its keys were last made out from scratch
    unique ("group", name)
);

-- What a subscription selects and how it orders, and what it did before.
create table :"schema".definitions (
    subscription bigint not null references :"schema".subscriptions on delete cascade,
    number integer not null,
    selects text not null,
    orders text not null,
    lanes integer not null,
    program text not null,
    since timestamptz not null default :"schema".clock(),
    -- Where each lane was when it was declared, and what it had settled ahead of that: all that was passed by the one
    -- before, or, of the first, when the subscription began. What comes again since is taken off.
    positions bigint[] not null,
    aheads jsonb not null,  -- as in cursors, an array a lane
    -- Of one that is created: whether somebody goes by it already, and these are true. Until then nothing was passed by it.
    adopted boolean not null default true,
    primary key (subscription, number)
);

-- What each worker does for a subscription, whoever shares its lanes out: told with every look. Who has not told
-- anything for longer than its lease, and does not beat, is dead. It outlives a crash of the server: else an older program
-- that comes back first would think that no newer one runs.
create table :"schema".serving (
    subscription bigint not null,
    worker text collate "C" not null,
    number integer not null,  -- of the definition that it knows
    runs boolean not null,  -- or it waits, for another order or for a newer program to end
    lanes integer[] not null default '{}',  -- that it has, or of which something still runs
    waits boolean not null default false,  -- whether something still runs of those that a barrier wants back
    until timestamptz not null,
    primary key (subscription, worker)
) with (fillfactor = 50);

-- What each worker does for each subscription, told every few seconds: good for looking at, not for deciding.
create unlogged table :"schema".reports (
    subscription bigint not null,
    worker text collate "C" not null,
    told timestamptz not null default :"schema".clock(),
    until timestamptz not null,  -- after this the worker should have told something newer
    rate float8 not null,  -- messages handled, a second
    in_flight integer not null,
    flights jsonb not null,  -- what is in flight: position, since
    error text,  -- the last one
    error_at timestamptz,
    -- Both count from a worker's beginning; what grew between two looks is what was measured between them.
    attempts bigint not null default 0,  -- that have ended
    handling_seconds float8 not null default 0,  -- that these took, together
    latencies float8[] not null default '{}',  -- of what was pulled: some that stand for the last ones
    stopped jsonb not null default '[]',  -- lanes that read no further, each with the limit that is reached
    primary key (subscription, worker)
) with (fillfactor = 50);

-- Not used twice in one life of the server: whoever takes a lane, and whoever moves one, draws a new one.
create sequence :"schema".epochs cache 1;

-- How far each lane is; the highest revision counts. Append-only: inserting the next revision is the
-- compare-and-set. A revision that begins an epoch has the time: it is what an owner of before would insert, so
-- it is kept for as long as such a one may come back, while the others go as soon as they are passed.
create table :"schema".cursors (
    subscription bigint not null,
    lane integer not null,
    revision bigint not null,
    epoch bigint,
    released boolean not null default false,
    taken timestamptz,
    "position" bigint not null,
    ahead bigint[] not null default '{}',  -- ranges: first, last, first, last, …
    primary key (subscription, lane, revision)
);
create index cursors_taken on :"schema".cursors (subscription, lane, revision) where taken is not null;

-- What of each lane a replay brings again, as ranges.
create table :"schema".replays (
    subscription bigint not null,
    lane integer not null,
    ranges bigint[] not null,  -- first, last, first, last, …
    primary key (subscription, lane)
);

-- Which definition had passed that before, in which of its lanes, as ranges: a message that is there and that it selected
-- had been handled, and is marked when it comes again. Its lane may be another by now, and the filter too.
create table :"schema".memories (
    subscription bigint not null,
    number integer not null,
    lane integer not null,
    ranges bigint[] not null,
    primary key (subscription, number, lane)
);

-- What somebody passed over by moving a lane forwards.
create table :"schema".leaps (
    subscription bigint not null,
    number integer not null,  -- of the definition then: it says which messages are the lane's
    lane integer not null,
    low bigint not null,  -- the first position
    high bigint not null,  -- the last
    at timestamptz not null default :"schema".clock(),
    primary key (subscription, number, lane, low)
);

-- How far the log had come, as progress knows it, and which log that is: it may be one in another database. The highest
-- row counts. Where the log is elsewhere, no cursor is written beyond it, so that progress can tell when the log is behind
-- it. Append-only, as cursors are. Those of the last minutes stay: they tell what of a log survived that went back.
create table :"schema".followed (
    horizon bigint primary key,
    log uuid not null,
    "position" bigint,  -- of the newest message up to there; none: there was none
    id uuid,
    "time" timestamptz,  -- of that message: one that is appended again has the same id
    at timestamptz not null default :"schema".clock()
);

-- Messages behind the cursor that are not done, and those that a person skipped.
create table :"schema".deliveries (
    subscription bigint not null,
    "position" bigint not null,
    lane integer not null,
    attempts integer not null,
    total integer not null,
    size integer not null,  -- of the message, in bytes
    revision bigint not null,
    since timestamptz not null,
    due timestamptz,
    state text collate "C" not null
        check (state in ('waiting', 'running', 'retrying', 'unrouted', 'parked', 'skipped', 'done')),
    key text collate "C",
    route text collate "C",
    suspicion text collate "C" check (suspicion in ('possible', 'certain')),  -- whether it may have ended a process
    waits_since timestamptz,  -- since when it waits for somebody who can read it
    reason text not null default '',
    error text not null default '',
    consumer text,  -- who had it at the last attempt, if that was a consumer
    claim uuid,  -- of whoever has pulled it: what it is settled by
    expires timestamptz,  -- when the claim ends by itself
    replay boolean not null default false,  -- it had been handled before
    -- Of those that are pulled: whether it is the one of its key that may be claimed, or has no key. Null: nobody could
    -- look yet.
    head boolean default false,
    primary key (subscription, "position")
);
-- A row is in one of these two: whoever does not care about parked ones does not walk past them.
create index deliveries_active on :"schema".deliveries (subscription, lane, key, "position")
    where state in ('waiting', 'running', 'retrying', 'unrouted');
create index deliveries_parked on :"schema".deliveries (subscription, lane, key, "position")
    where state = 'parked';
create index deliveries_due on :"schema".deliveries (subscription, lane, due, "position") where due is not null;
create index deliveries_state on :"schema".deliveries (subscription, lane, state, "position")
    where state in ('running', 'unrouted');
create index deliveries_route on :"schema".deliveries (subscription, lane, route, "position")
    where state = 'unrouted';
-- Those of pulling.
create index deliveries_ready on :"schema".deliveries (subscription, lane, "position")
    where state = 'waiting' and head;
create index deliveries_again on :"schema".deliveries (subscription, due, "position") where state = 'retrying' and head;
create index deliveries_claimed on :"schema".deliveries (subscription, expires) where claim is not null;
create index deliveries_heads on :"schema".deliveries (subscription, key) where head and key is not null;
create index deliveries_unsure on :"schema".deliveries (subscription, key) where head is null;
create index deliveries_done on :"schema".deliveries (subscription, since) where state = 'done';

-- How many deliveries there are: the sum of a subscription's rows, to which each statement that changes
-- deliveries adds one. So nobody counts a hundred thousand rows, and nobody waits for anybody.
create table :"schema".counts (
    subscription bigint not null,
    number bigint generated always as identity (cache 1),
    waiting bigint not null,
    retrying bigint not null,
    unrouted bigint not null,
    parked bigint not null,
    primary key (subscription, number)
);

create function :"schema".count_deliveries() returns trigger
language plpgsql
as $$
begin
    if tg_op = 'INSERT' then
        insert into :"schema".counts (subscription, waiting, retrying, unrouted, parked)
        select n.subscription, count(*) filter (where n.state = 'waiting'),
               count(*) filter (where n.state = 'retrying'), count(*) filter (where n.state = 'unrouted'),
               count(*) filter (where n.state = 'parked')
        from added n
        where n.state in ('waiting', 'retrying', 'unrouted', 'parked')
        group by n.subscription;
    elsif tg_op = 'DELETE' then
        insert into :"schema".counts (subscription, waiting, retrying, unrouted, parked)
        select o.subscription, -count(*) filter (where o.state = 'waiting'),
               -count(*) filter (where o.state = 'retrying'), -count(*) filter (where o.state = 'unrouted'),
               -count(*) filter (where o.state = 'parked')
        from removed o
        where o.state in ('waiting', 'retrying', 'unrouted', 'parked')
        group by o.subscription;
    else
        insert into :"schema".counts (subscription, waiting, retrying, unrouted, parked)
        select c.subscription, sum(c.change) filter (where c.state = 'waiting'),
               sum(c.change) filter (where c.state = 'retrying'), sum(c.change) filter (where c.state = 'unrouted'),
               sum(c.change) filter (where c.state = 'parked')
        from (
            select n.subscription, n.state, 1 as change from added n
            union all
            select o.subscription, o.state, -1 from removed o
            union all
            select n.subscription, s.state, 0
            from added n, (values ('waiting'), ('retrying'), ('unrouted'), ('parked')) s(state)
        ) c
        group by c.subscription
        having sum(c.change) filter (where c.state = 'waiting') <> 0
            or sum(c.change) filter (where c.state = 'retrying') <> 0
            or sum(c.change) filter (where c.state = 'unrouted') <> 0
            or sum(c.change) filter (where c.state = 'parked') <> 0;
    end if;
    return null;
end $$;
create trigger deliveries_inserted after insert on :"schema".deliveries
    referencing new table as added
    for each statement execute function :"schema".count_deliveries();
create trigger deliveries_updated after update on :"schema".deliveries
    referencing old table as removed new table as added
    for each statement execute function :"schema".count_deliveries();
create trigger deliveries_deleted after delete on :"schema".deliveries
    referencing old table as removed
    for each statement execute function :"schema".count_deliveries();

-- Makes one row of many. What another transaction is about to fold is left to it.
create function :"schema".fold_counts(subscription bigint) returns void
language sql volatile
as $$
    with folded as (
        delete from :"schema".counts c
        where c.subscription = $1 and c.number in (
            select f.number from :"schema".counts f
            where f.subscription = $1
            for update skip locked)
        returning c.waiting, c.retrying, c.unrouted, c.parked)
    insert into :"schema".counts (subscription, waiting, retrying, unrouted, parked)
    select $1, sum(f.waiting), sum(f.retrying), sum(f.unrouted), sum(f.parked)
    from folded f
    having sum(f.waiting) <> 0 or sum(f.retrying) <> 0 or sum(f.unrouted) <> 0 or sum(f.parked) <> 0
$$;

-- Somebody has done something to a subscription: its workers are to look at once.
create function :"schema".act(subscription bigint) returns void
language plpgsql volatile
as $$
begin
    update :"schema".subscriptions s set acted = s.acted + 1 where s.id = act.subscription;
    perform pg_notify(:'schema', 'act');
end $$;

-- A row as JSON, with its message, of which only position and size are known here.
create function :"schema".loaded(d :"schema".deliveries) returns json
language sql stable
as $$
    select json_build_object(
        'row', json_build_object(
            'position', d."position", 'key', d.key, 'state', d.state,
            'since', date_part('epoch', d.since), 'attempts', d.attempts, 'total', d.total,
            'due', date_part('epoch', d.due), 'route', d.route,
            'suspicion', d.suspicion, 'waits_since', date_part('epoch', d.waits_since), 'reason', d.reason,
            'error', d.error, 'consumer', d.consumer, 'size', d.size, 'revision', d.revision),
        'message', json_build_object('position', d."position", 'size', d.size))
$$;

-- A row as an owner writes it.
create type :"schema".delivery as (
    "position" bigint, key text, state text, since float8, attempts integer, total integer, due float8,
    route text, suspicion text, waits_since float8, reason text, error text, consumer text, size integer, revision bigint
);

-- Compare-and-sets of rows, each with the revision that it replaces (none: there is no row yet) and the row
-- (none: it is done); tells which found their revision. One that is required and does not ends the transaction. What is
-- done goes, or stays as that, if `keeps`.
create function :"schema".move_deliveries(subscription bigint, lane integer, moves jsonb, keeps boolean)
returns boolean[]
language plpgsql volatile
as $$
declare
    moved boolean[];
    unmet boolean;
begin
    with given as materialized (
        select m.*
        from rows from (
            jsonb_to_recordset(moves)
                as ("position" bigint, replaces bigint, "row" :"schema".delivery, required boolean)
        ) with ordinality as m("position", replaces, "row", required, ordinal)
        order by m."position"
    ), stored as (
        -- One by one, with a limit that nothing else can be made of: a plan from when there were few rows would
        -- read them all.
        select g.*, d.tid
        from given g
        cross join lateral (
            select d.ctid as tid
            from :"schema".deliveries d
            where d.subscription = move_deliveries.subscription and d."position" = g."position"
              and d.revision = g.replaces
            limit 1
        ) d
    ), inserted as (
        insert into :"schema".deliveries
            (subscription, "position", lane, attempts, total, size, revision, since, due, state, key, route,
             suspicion, waits_since, reason, error, consumer)
        select move_deliveries.subscription, g."position", move_deliveries.lane, (g."row").attempts, (g."row").total,
               (g."row").size, (g."row").revision, to_timestamp((g."row").since), to_timestamp((g."row").due), (g."row").state,
               (g."row").key, (g."row").route, (g."row").suspicion,
               to_timestamp((g."row").waits_since), (g."row").reason, (g."row").error,
               (g."row").consumer
        from given g
        where g.replaces is null and not g."row" is null
        on conflict do nothing
        returning deliveries."position"
    ), updated as (
        update :"schema".deliveries d
        set attempts = (g."row").attempts, total = (g."row").total, size = (g."row").size,
            revision = (g."row").revision,
            since = to_timestamp((g."row").since), due = to_timestamp((g."row").due), state = (g."row").state,
            key = (g."row").key, route = (g."row").route, suspicion = (g."row").suspicion,
            waits_since = to_timestamp((g."row").waits_since),
            reason = (g."row").reason, error = (g."row").error, consumer = (g."row").consumer
        from stored g
        where d.ctid = g.tid and d.revision = g.replaces and not g."row" is null
        returning d."position"
    ), deleted as (
        delete from :"schema".deliveries d
        using stored g
        where d.ctid = g.tid and d.revision = g.replaces and g."row" is null and not keeps
        returning d."position"
    ), kept as (
        update :"schema".deliveries d
        set state = 'done', attempts = d.attempts + 1, total = d.total + 1, since = :"schema".clock(), due = null,
            route = null, suspicion = null, waits_since = null, reason = '', error = '', revision = d.revision + 1
        from stored g
        where d.ctid = g.tid and d.revision = g.replaces and g."row" is null and keeps
        returning d."position"
    )
    select array_agg(t."position" is not null order by g.ordinal),
           bool_or(g.required and t."position" is null)
    into moved, unmet
    from given g
    left join (
        select i."position" from inserted i
        union all select u."position" from updated u
        union all select x."position" from deleted x
        union all select k."position" from kept k
    ) t on t."position" = g."position";
    if unmet then
        raise exception using errcode = 'MP002', message = 'a row that a move requires has another revision';
    end if;
    return moved;
end $$;

-- What attempts that ended mean for all lanes together. The subscription's row is written only if that changes it.
create function :"schema".judge(
    subscription bigint, succeeded bigint, failed bigint, retrying bigint, stall_after bigint
) returns void
language plpgsql volatile
as $$
begin
    update :"schema".subscriptions s
    set streak = case when succeeded > 0 then 0 else s.streak end + failed,
        stalled = case
            when failed > 0 and retrying > stall_after then
                to_char(retrying, 'FM999,999,999,999') || ' messages are retrying, more than '
                || to_char(stall_after, 'FM999,999,999,999')
            when failed > 0 and case when succeeded > 0 then 0 else s.streak end + failed >= stall_after then
                'the last ' || to_char(case when succeeded > 0 then 0 else s.streak end + failed, 'FM999,999,999,999')
                || ' attempts failed'
            when succeeded = 0 then s.stalled
        end
    where s.id = judge.subscription
      and (failed > 0 or succeeded > 0 and (s.streak <> 0 or s.stalled is not null));
end $$;

-- Which rows are due, earliest first so that none is always too late, and when the next one is.
create function :"schema".ask_due(
    subscription bigint, lane integer, ask jsonb, out due bigint[], out next_due timestamptz
)
language plpgsql stable
as $$
declare
    now timestamptz := to_timestamp((ask ->> 'now')::float8);
    most bigint := (ask ->> 'limit')::bigint;
    holding jsonb := ask -> 'holding';
begin
    select array_agg(r."position") filter (where r.place <= most and r.due <= now),
           min(r.due) filter (where not (r.place <= most and r.due <= now))
    into ask_due.due, next_due
    from (
        select d."position", d.due, row_number() over (order by d.due, d."position") as place
        from :"schema".deliveries d
        where d.subscription = ask_due.subscription and d.lane = ask_due.lane and d.due is not null
          and (holding ->> d."position"::text)::bigint is distinct from d.revision
        order by d.due, d."position"
        limit most + 1
    ) r;
    due := coalesce(due, '{}');
end $$;

-- Keys above one whose lowest row waits. Looks at a bounded number of keys, from one to the next by the index.
create function :"schema".ask_heads(
    subscription bigint, lane integer, after text, most bigint, continues boolean,
    out heads text[], out heads_end text
)
language plpgsql stable
as $$
declare
    bound bigint := greatest(1000, most + 1);
    walked bigint;
    last text;
begin
    with recursive walk(key, "position", state, place) as (
        (
            select d.key, d."position", d.state, 1::bigint
            from :"schema".deliveries d
            where d.subscription = ask_heads.subscription and d.lane = ask_heads.lane and d.key > after
              and d.state in ('waiting', 'running', 'retrying', 'unrouted')
            order by d.key, d."position"
            limit 1
        )
        union all
        select n.key, n."position", n.state, w.place + 1
        from walk w
        cross join lateral (
            select d.key, d."position", d.state
            from :"schema".deliveries d
            where d.subscription = ask_heads.subscription and d.lane = ask_heads.lane and d.key > w.key
              and d.state in ('waiting', 'running', 'retrying', 'unrouted')
            order by d.key, d."position"
            limit 1
        ) n
        where w.place < bound
    )
    select count(*), max(w.key),
           array_agg(w.key order by w.key) filter (
               where w.state = 'waiting' and (continues or (
                   select true
                   from :"schema".deliveries d
                   where d.subscription = ask_heads.subscription and d.lane = ask_heads.lane
                     and d.key between w.key and w.key and d."position" < w."position" and d.state = 'parked'
                   order by d.key, d."position"
                   limit 1) is null))
    into walked, last, heads
    from walk w;
    heads := coalesce(heads, '{}');
    if cardinality(heads) > most then
        heads := heads[:most];
        heads_end := coalesce(heads[most], after);
    elsif walked = bound then
        heads_end := last;
    end if;
end $$;

-- The unsettled rows of keys, lowest first: of those asked for some, of those found otherwise one.
create function :"schema".ask_held(
    subscription bigint, lane integer, asked text[], others text[], per_key bigint, continues boolean
) returns json
language plpgsql stable
as $$
begin
    return (
        select json_object_agg(k.key, json_build_object(
            'rows', (select json_agg(:"schema".loaded(f)) from unnest(r.rows[:k.most]) f),
            'more', cardinality(r.rows) > k.most))
        from (
            select u.key, max(u.most) as most
            from (
                select a.key, per_key as most from unnest(asked) a(key)
                union all
                select o.key, 1 from unnest(others) o(key) where o.key is not null
            ) u
            group by u.key
        ) k
        cross join lateral (
            select array_agg(b.delivery order by b."position") as rows
            from (
                (
                    select d as delivery, d."position"
                    from :"schema".deliveries d
                    where d.subscription = ask_held.subscription and d.lane = ask_held.lane
                      and d.key between k.key and k.key
                      and d.state in ('waiting', 'running', 'retrying', 'unrouted')
                    order by d.key, d."position"
                    limit k.most + 1
                )
                union all
                (
                    select d, d."position"
                    from :"schema".deliveries d
                    where d.subscription = ask_held.subscription and d.lane = ask_held.lane
                      and d.key between k.key and k.key and d.state = 'parked' and not continues
                    order by d.key, d."position"
                    limit k.most + 1
                )
            ) b
            having count(*) > 0
        ) r
    );
end $$;

-- Unrouted rows above a position, in order, and up to where that was looked for.
create function :"schema".ask_unrouted(
    subscription bigint, lane integer, ask jsonb, out unrouted json, out unrouted_end bigint
)
language plpgsql stable
as $$
declare
    after bigint := (ask ->> 'unrouted_after')::bigint;
    most bigint := (ask ->> 'unrouted_limit')::bigint;
    holding jsonb := ask -> 'holding';
    chosen :"schema".deliveries[];
begin
    if jsonb_typeof(ask -> 'routes') = 'array' then
        select array_agg(r.delivery order by r."position") into chosen
        from (
            select u.delivery, u."position"
            from jsonb_array_elements_text(ask -> 'routes') as wanted(route)
            cross join lateral (
                select d as delivery, d."position"
                from :"schema".deliveries d
                where d.subscription = ask_unrouted.subscription and d.lane = ask_unrouted.lane
                  and (d.route, d."position") > (wanted.route, after)
                  and (d.route, d."position") <= (wanted.route, 9223372036854775807) and d.state = 'unrouted'
                  and (holding ->> d."position"::text)::bigint is distinct from d.revision
                order by d.route, d."position"
                limit most + 1
            ) u
            order by u."position"
            limit most + 1
        ) r;
    else
        select array_agg(r.delivery order by r."position") into chosen
        from (
            select d as delivery, d."position"
            from :"schema".deliveries d
            where d.subscription = ask_unrouted.subscription
              and d.lane between ask_unrouted.lane and ask_unrouted.lane
              and d.state = 'unrouted' and d."position" > after
              and (holding ->> d."position"::text)::bigint is distinct from d.revision
            order by d.lane, d."position"
            limit most + 1
        ) r;
    end if;
    if cardinality(chosen) > most then
        chosen := chosen[:most];
        unrouted_end := coalesce((chosen[most])."position", after);
    end if;
    select coalesce(json_agg(:"schema".loaded(f) order by f."position"), '[]') into unrouted
    from unnest(chosen) f;
end $$;

-- All that an owner asks for, as JSON; how many bytes of messages that may be is for whoever loads them.
create function :"schema".answer(subscription bigint, lane integer, ask jsonb, continues boolean) returns json
language plpgsql stable
as $$
declare
    due record;
    due_rows json := '[]';
    next_due timestamptz;
    heads text[] := '{}';
    heads_end text;
    asked text[] := array(select jsonb_array_elements_text(ask -> 'keys'));
    others text[] := '{}';
    held json;
    unrouted json := '[]';
    unrouted_end bigint;
begin
    if (ask ->> 'due')::boolean then
        due := :"schema".ask_due(subscription, lane, ask);
        next_due := due.next_due;
        select coalesce(json_agg(:"schema".loaded(r.delivery) order by r.due, r."position"), '[]'),
               coalesce(array_agg(r.key), '{}')
        into due_rows, others
        from unnest(due.due) as told("position")
        cross join lateral (
            select d as delivery, d."position", d.due, d.key
            from :"schema".deliveries d
            where d.subscription = answer.subscription and d."position" = told."position"
            limit 1
        ) r;
    end if;
    if ask ->> 'heads_after' is not null then
        select h.heads, h.heads_end into heads, heads_end
        from :"schema".ask_heads(
            subscription, lane, ask ->> 'heads_after', (ask ->> 'limit')::bigint, continues) h;
    end if;
    if cardinality(asked) > 0 or cardinality(others) > 0 or cardinality(heads) > 0 then
        held := :"schema".ask_held(
            subscription, lane, asked, others || heads, (ask ->> 'per_key')::bigint, continues);
    end if;
    if ask ->> 'unrouted_after' is not null then
        select u.unrouted, u.unrouted_end into unrouted, unrouted_end
        from :"schema".ask_unrouted(subscription, lane, ask) u;
    end if;
    return json_build_object(
        'held', coalesce(held, '{}'), 'due', due_rows, 'next_due', date_part('epoch', next_due),
        'heads', heads, 'heads_end', heads_end, 'unrouted', unrouted, 'unrouted_end', unrouted_end);
end $$;

-- Whether a lane has rows that are not settled. The first in the order of an index is looked for: see `exchange`.
create function :"schema".has_deliveries(subscription bigint, lane integer) returns boolean
language plpgsql stable
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
begin
    return (
            select true from :"schema".deliveries d
            where d.subscription = has_deliveries.subscription and d.lane = has_deliveries.lane
              and d.state in ('waiting', 'running', 'retrying', 'unrouted')
            order by d.key, d."position" limit 1) is not null
        or (
            select true from :"schema".deliveries d
            where d.subscription = has_deliveries.subscription and d.lane = has_deliveries.lane
              and d.state = 'parked'
            order by d.key, d."position" limit 1) is not null;
end $$;

-- Whether a subscription is there and the log has its life, as things are now and not when a transaction began: what an
-- exchange under repeatable read or serializable cannot see. One that was deleted or has another life since ends the
-- transaction with a serialization failure. What fences the lane itself is the next revision: nobody can insert that
-- twice, whatever is seen, and it stays as long as it begins an epoch or is the newest.
create function :"schema".holds_now(subscription bigint) returns boolean
language plpgsql volatile
set enable_seqscan = off
as $$
begin
    perform from :"schema".server_life l where l.single for share;
    perform from :"schema".subscriptions s where s.id = holds_now.subscription for key share;
    return found;
end $$;

-- One exchange of a lane's owner: what it writes, then what it asks, which sees that. A write inserts the revision
-- after the one that it replaces: what is not there with the owner's epoch, or has been followed already, is stale. So
-- is a lane that was taken in another life of the server: epochs, revisions and positions may have been drawn again.
--
-- The settings keep a plan to the indexes that was made when there were few rows, and is kept. Which index it takes is
-- said by an order that one index alone has, and that is why some columns are compared as ranges: a column that equals
-- something has no part in an order, and then another index would do as well, if it were not read from its beginning to
-- its end. What is called here relies on that, too.
create function :"schema".exchange(
    subscription bigint, lane integer, life uuid, epoch bigint, revision bigint,
    writes boolean, "position" bigint, ahead bigint[], moves jsonb, keep_done float8, succeeded bigint, failed bigint,
    released boolean, ask jsonb, stall_after bigint, continues boolean
) returns json
language plpgsql volatile
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_incremental_sort = off
set jit = off
as $$
declare
    moved boolean[] := '{}';
    counts record;
    stored record;
    told json;
begin
    if current_setting('transaction_isolation') <> 'read committed' and not :"schema".holds_now(subscription) then
        raise exception using errcode = 'MP003', message = 'the subscription was deleted';
    end if;
    if writes then
        insert into :"schema".cursors (subscription, lane, revision, epoch, released, "position", ahead)
        select c.subscription, c.lane, c.revision + 1, c.epoch, exchange.released, exchange."position", exchange.ahead
        from :"schema".cursors c
        where c.subscription = exchange.subscription and c.lane = exchange.lane
          and c.revision = exchange.revision and c.epoch = exchange.epoch
          and exists (select from :"schema".server_life l where l.token = exchange.life);
    else
        perform from (
            select c.revision, c.epoch from :"schema".cursors c
            where c.subscription = exchange.subscription and c.lane = exchange.lane
            order by c.revision desc limit 1
        ) c
        where c.revision = exchange.revision and c.epoch = exchange.epoch
          and exists (select from :"schema".server_life l where l.token = exchange.life);
    end if;
    if not found then
        raise exception using errcode = 'MP003', message = 'the lane has another owner, or its cursor has moved';
    end if;
    if writes and (revision + 1) % 64 = 0 then
        delete from :"schema".cursors c
        where c.subscription = exchange.subscription and c.lane = exchange.lane
          and c.revision between exchange.revision - 127 and exchange.revision and c.taken is null;
    end if;

    if moves is not null then
        moved := :"schema".move_deliveries(subscription, lane, moves, keep_done is not null);
        -- In a handler's transaction on an older snapshot, rows that another process has pruned would be a conflict.
        if keep_done is not null and current_setting('transaction_isolation') = 'read committed' then
            perform :"schema".prune_done(subscription, :"schema".clock() - make_interval(secs => keep_done));
        end if;
    end if;
    select coalesce(sum(n.waiting), 0) as waiting, coalesce(sum(n.retrying), 0) as retrying,
           coalesce(sum(n.unrouted), 0) as unrouted, count(*) as rows
    into counts
    from :"schema".counts n where n.subscription = exchange.subscription;
    if counts.rows > 64 and current_setting('transaction_isolation') = 'read committed' then
        perform :"schema".fold_counts(subscription);
    end if;
    if writes and (succeeded > 0 or failed > 0) then
        perform :"schema".judge(subscription, succeeded, failed, counts.retrying::bigint, stall_after);
    end if;
    select s.streak, s.stalled into stored from :"schema".subscriptions s where s.id = exchange.subscription;

    if ask is not null then
        told := :"schema".answer(subscription, lane, ask, continues);
    end if;
    return json_build_object(
        'now', date_part('epoch', :"schema".clock()), 'moved', moved, 'found', told,
        'rows', :"schema".has_deliveries(subscription, lane),
        'counts', json_build_object(
            'waiting', counts.waiting, 'retrying', counts.retrying, 'unrouted', counts.unrouted),
        'streak', stored.streak, 'stalled', stored.stalled);
end $$;

-- The usual exchange of several lanes, of any subscriptions: their cursors and nothing else. Of each whose revision and
-- epoch were the last it tells what every exchange tells.
-- In order: two who write the same lanes wait for each other in one direction. Each row is looked for by its index, one
-- by one, whatever the statistics say. Of deliveries the first in the order of an index is looked for: asked whether any
-- exist, the planner would read a whole table that is full of another subscription's.
create function :"schema".write_cursors(
    subscriptions bigint[], lanes integer[], lives uuid[], epochs bigint[], revisions bigint[], positions bigint[],
    aheads text[]
) returns table (
    subscription bigint, lane integer, epoch bigint, revision bigint, now float8, streak bigint, stalled text,
    has_rows boolean, waiting bigint, retrying bigint, unrouted bigint
)
language plpgsql volatile
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    present uuid := (select l.token from :"schema".server_life l where l.single);
    sees_now boolean := current_setting('transaction_isolation') = 'read committed';
begin
    return query
    with given as (
        select g.*
        from unnest(subscriptions, lanes, lives, epochs, revisions, positions, aheads)
            as g(subscription, lane, life, epoch, revision, "position", ahead)
        where g.life = present and (sees_now or :"schema".holds_now(g.subscription))
    ),
    written as (
        insert into :"schema".cursors (subscription, lane, revision, epoch, "position", ahead)
        select g.subscription, g.lane, g.revision + 1, g.epoch, g."position", g.ahead::bigint[]
        from given g
        cross join lateral (
            select c.epoch
            from :"schema".cursors c
            where c.subscription = g.subscription and c.lane = g.lane and c.revision = g.revision
            limit 1
        ) c
        where c.epoch = g.epoch
        order by g.subscription, g.lane
        returning subscription, lane, epoch, revision
    )
    select w.subscription, w.lane, w.epoch, w.revision - 1, date_part('epoch', :"schema".clock()), s.streak, s.stalled,
           (
               select true from :"schema".deliveries d
               where d.subscription = w.subscription and d.lane = w.lane
                 and d.state in ('waiting', 'running', 'retrying', 'unrouted')
               order by d.key, d."position" limit 1
           ) is not null or (
               select true from :"schema".deliveries d
               where d.subscription = w.subscription and d.lane = w.lane and d.state = 'parked'
               order by d.key, d."position" limit 1
           ) is not null,
           n.waiting, n.retrying, n.unrouted
    from written w
    left join lateral (
        select s.streak, s.stalled from :"schema".subscriptions s where s.id = w.subscription limit 1
    ) s on true
    cross join lateral (
        select coalesce(sum(c.waiting), 0)::bigint as waiting, coalesce(sum(c.retrying), 0)::bigint as retrying,
               coalesce(sum(c.unrouted), 0)::bigint as unrouted
        from :"schema".counts c
        where c.subscription = w.subscription
    ) n;
end $$;

-- What each definition had handled before a replay, with what it selected and how it ordered; null: there is none.
create function :"schema".remembered(subscription bigint) returns json
language sql stable
as $$
    select json_agg(json_build_object(
        'number', d.number, 'selects', d.selects, 'orders', d.orders, 'lanes', d.lanes, 'ranges', m.ranges))
    from (
        select m.number, json_object_agg(m.lane, m.ranges) as ranges
        from :"schema".memories m
        where m.subscription = $1
          and exists (select from :"schema".replays r where r.subscription = $1)
        group by m.number
    ) m
    join :"schema".definitions d on d.subscription = $1 and d.number = m.number
$$;

-- Takes lanes under new epochs, and tells what is stored of each. An INSERT waits for another's that has not
-- committed: not for long, such a lane is left for later.
create function :"schema".take(subscription bigint, lanes integer[]) returns json
language plpgsql volatile
set lock_timeout = '50ms'
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
declare
    wanted integer;
    last :"schema".cursors;
    drawn bigint;
    running json;
    replay bigint[];
    held json[] := '{}';
begin
    foreach wanted in array lanes loop
        drawn := null;
        for attempt in 1 .. 5 loop
            select * into last from :"schema".cursors c
            where c.subscription = take.subscription and c.lane = wanted
            order by c.revision desc limit 1;
            exit when not found;
            begin
                insert into :"schema".cursors (subscription, lane, revision, epoch, taken, "position", ahead)
                values (subscription, wanted, last.revision + 1, nextval(format('%I.epochs', :'schema')),
                        :"schema".clock(), last."position", last.ahead)
                returning cursors.epoch into drawn;
                exit;
            exception
                when lock_not_available then exit;
                when unique_violation then null;
            end;
        end loop;
        continue when drawn is null;
        perform :"schema".goes_by(subscription, last."position", last.ahead);
        delete from :"schema".cursors c
        where c.subscription = take.subscription and c.lane = wanted
          and c.revision between last.revision - 127 and last.revision and c.taken is null;
        delete from :"schema".cursors c
        where c.subscription = take.subscription and c.lane = wanted
          and c.revision <= last.revision and c.taken is not null and c.taken < :"schema".clock() - interval '1 day';
        select coalesce(json_agg(:"schema".loaded(r.delivery) order by (r.delivery)."position"), '[]') into running
        from (
            select d as delivery
            from :"schema".deliveries d
            where d.subscription = take.subscription and d.lane between wanted and wanted and d.state = 'running'
            order by d.lane, d."position"
        ) r;
        select r.ranges into replay from :"schema".replays r
        where r.subscription = take.subscription and r.lane = wanted;
        if replay[cardinality(replay)] <= last."position" and not :"schema".has_deliveries(subscription, wanted) then
            -- It has come to its end, and left nothing behind that is to be tried again.
            delete from :"schema".replays r where r.subscription = take.subscription and r.lane = wanted;
            replay := null;
        end if;
        held := held || json_build_object(
            'lane', wanted, 'epoch', drawn, 'revision', last.revision + 1, 'previous', last.epoch,
            'position', last."position", 'ahead', last.ahead,
            'unclean', last.epoch is not null and not last.released,
            'rows', :"schema".has_deliveries(subscription, wanted), 'running', running,
            'replay', coalesce(replay, '{}'));
    end loop;
    return (
        select json_build_object(
            'now', date_part('epoch', :"schema".clock()),
            'lanes', held, 'streak', s.streak, 'stalled', s.stalled, 'memories', :"schema".remembered(s.id),
            'counts', json_build_object(
                'waiting', coalesce(n.waiting, 0), 'retrying', coalesce(n.retrying, 0),
                'unrouted', coalesce(n.unrouted, 0)))
        from :"schema".subscriptions s,
             lateral (select sum(c.waiting) as waiting, sum(c.retrying) as retrying, sum(c.unrouted) as unrouted
                      from :"schema".counts c where c.subscription = s.id) n
        where s.id = take.subscription
    );
end $$;

-- Whether a worker still lives, for so long from now on; if not, it does again from now on, without lanes.
create function :"schema".beat(worker text, "group" text, program text, lease interval) returns boolean
language plpgsql volatile
as $$
begin
    update :"schema".workers w set beat = :"schema".clock(), lease = beat.lease
    where w.id = worker and w.beat + w.lease >= :"schema".clock();
    if found then
        return true;
    end if;
    insert into :"schema".workers (id, "group", program, beat, lease)
    values (worker, beat."group", beat.program, :"schema".clock(), beat.lease)
    on conflict (id) do update set beat = excluded.beat, lease = excluded.lease, wants = '{}';
    update :"schema".lanes l set owner = null, since = :"schema".clock() where l.owner = worker;
    return false;
end $$;

-- How many lanes of each subscription are a worker's: all of them shared out among those who want it. Who gets one
-- more is another for each subscription, or one worker would have all that have one lane.
create function :"schema".targets(worker text, wants bigint[], sizes integer[])
returns table (subscription bigint, size integer, target bigint)
language sql stable
as $$
    select n.s, n.size,
           n.size / w.workers + case when (w.before + n.s) % w.workers < n.size % w.workers then 1 else 0 end
    from unnest(wants, sizes) n(s, size)
    cross join lateral (
        select count(*) as workers, count(*) filter (where w.id < worker) as before
        from :"schema".workers w
        where n.s = any (w.wants)
    ) w
    where w.workers > 0
$$;

-- For each wanted subscription, with so many lanes, and each that is held: the lanes that a worker may take and
-- those that it should give, so that the live workers that want it have the same number, give or take one.
create function :"schema".balance(worker text, wants bigint[], sizes integer[], held_in bigint[], held_lanes integer[])
returns table (subscription bigint, lane integer, gives boolean)
language plpgsql volatile
as $$
#variable_conflict use_column
begin
    -- Who has expired goes, in a statement of its own, so that what follows agrees on who lives. One that is
    -- beating just now is left alone.
    delete from :"schema".workers w
    where w.id in (
        select e.id from :"schema".workers e
        where e.beat + e.lease < :"schema".clock()
        for update skip locked);
    update :"schema".workers w set wants = balance.wants where w.id = worker and w.wants <> balance.wants;
    perform from :"schema".workers w where w.id = worker;
    if not found then
        -- It has expired, or the server has crashed, which empties what is unlogged: it has to beat first.
        return query select null::bigint, null::integer, true;
        return;
    end if;

    insert into :"schema".lanes (subscription, lane)
    select n.s, l from unnest(balance.wants, sizes) n(s, size), generate_series(0, n.size - 1) l
    where not exists (select from :"schema".lanes o where o.subscription = n.s and o.lane = l)
    order by n.s, l
    on conflict do nothing;

    -- Too many: those that are not held go at once.
    update :"schema".lanes o set owner = null, since = :"schema".clock()
    from (
        select o.subscription, o.lane,
               row_number() over (partition by o.subscription order by h.l is null, o.lane)
                   > coalesce(t.target, 0) as is_excess,
               h.l is not null as is_held
        from :"schema".lanes o
        left join :"schema".targets(worker, balance.wants, sizes) t on t.subscription = o.subscription
        left join unnest(held_in, held_lanes) h(s, l) on h.s = o.subscription and h.l = o.lane
        where o.owner = worker
    ) x
    where x.is_excess and not x.is_held and o.subscription = x.subscription and o.lane = x.lane;

    -- Too few: free ones, and those of owners that are no more.
    update :"schema".lanes o set owner = worker, since = :"schema".clock()
    from :"schema".targets(worker, balance.wants, sizes) t
    cross join lateral (
        select f.subscription, f.lane
        from :"schema".lanes f
        where f.subscription = t.subscription and f.lane < t.size
          and (f.owner is null or not exists (select from :"schema".workers w where w.id = f.owner))
        order by f.lane
        limit greatest(0, t.target - (
            select count(*) from :"schema".lanes m where m.subscription = t.subscription and m.owner = worker))
        for update skip locked
    ) x
    where o.subscription = x.subscription and o.lane = x.lane;

    return query
    select o.subscription, o.lane, false
    from :"schema".lanes o
    where o.owner = worker and o.subscription = any (balance.wants)
      and not exists (select from unnest(held_in, held_lanes) h(s, l) where h.s = o.subscription and h.l = o.lane)
    union all
    select h.s, h.l, true
    from (
        select h.s, h.l, o.owner, t.target, row_number() over (partition by h.s, o.owner order by h.l) as place
        from unnest(held_in, held_lanes) h(s, l)
        left join :"schema".lanes o on o.subscription = h.s and o.lane = h.l and o.owner = worker
        left join :"schema".targets(worker, balance.wants, sizes) t on t.subscription = h.s
    ) h
    where h.owner is null or h.place > coalesce(h.target, 0);
end $$;
