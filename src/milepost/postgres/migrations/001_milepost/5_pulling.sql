-- Pulling: subscriptions that turn every message into a row, which whoever comes claims and settles.

-- How long a message waits after so many attempts, in seconds; null: there is no further one. The same as `Retry.wait`.
create function :"schema".retry_wait(policy jsonb, attempts integer) returns float8
language plpgsql volatile
as $$
declare
    delay float8 := policy ->> 'delay';
    factor float8 := policy ->> 'factor';
    longest float8 := coalesce((policy ->> 'max_delay')::float8, 'infinity');
    plain float8;
begin
    if attempts >= (policy ->> 'attempts')::integer then
        return null;
    elsif delay = 0 or longest = 0 then
        return 0;
    elsif (attempts - 1) * ln(factor) >= ln(longest) - ln(delay) then
        plain := longest;
    else
        plain := delay * power(factor, attempts - 1);
    end if;
    return plain * (1 + (policy ->> 'jitter')::float8 * (2 * random() - 1));
end $$;

-- A moment from now on: a hundred years ahead at most, which every clock can add.
create function :"schema".moment(seconds float8) returns timestamptz
language sql volatile
as $$ select :"schema".clock() + make_interval(secs => least(greatest(seconds, 0), 3162240000)) $$;

-- Who converts, settles or decides about rows of a key has its lock until the transaction ends, and looks in the next
-- statement: so the one of a key that may be claimed is always known. Keys are locked in one order, whoever asks; instead
-- of very many of them, the whole subscription.
create function :"schema".lock_keys(subscription bigint, keys text[]) returns void
language plpgsql volatile
as $$
declare
    whole bigint := hashtextextended(:'schema', subscription);
    lock bigint;
begin
    if cardinality(keys) > 512 then
        perform pg_advisory_xact_lock(whole);
    elsif cardinality(keys) > 0 then
        perform pg_advisory_xact_lock_shared(whole);
        for lock in select distinct hashtextextended(k, whole) from unnest(keys) k order by 1 loop
            perform pg_advisory_xact_lock(lock);
        end loop;
    end if;
end $$;

-- The same without waiting for anybody: tells which keys it has.
create function :"schema".try_lock_keys(subscription bigint, keys text[]) returns text[]
language plpgsql volatile
as $$
declare
    whole bigint := hashtextextended(:'schema', subscription);
begin
    if cardinality(keys) > 512 and pg_try_advisory_xact_lock(whole) then
        return keys;
    elsif cardinality(keys) = 0 or not pg_try_advisory_xact_lock_shared(whole) then
        return '{}';
    end if;
    return array(select k from unnest(keys[:512]) k where pg_try_advisory_xact_lock(hashtextextended(k, whole)));
end $$;

-- What follows says by an order which index it takes, as `exchange` does.

-- Of each of these keys, which are locked, the lowest row becomes its head, if it has none. A parked one counts where it
-- blocks its key. Tells how many.
create function :"schema".promote_heads(subscription bigint, keys text[], blocks boolean) returns bigint
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
    row_ids tid[];
begin
    row_ids := array(
        select l.row_id
        from unnest(keys) k(key)
        cross join lateral (
            select h.row_id
            from (
                (
                    select d.ctid as row_id, d."position"
                    from :"schema".deliveries d
                    where d.subscription = promote_heads.subscription and d.lane = 0
                      and d.key between k.key and k.key
                      and d.state in ('waiting', 'running', 'retrying', 'unrouted')
                    order by d.key, d."position"
                    limit 1
                )
                union all
                (
                    select d.ctid, d."position"
                    from :"schema".deliveries d
                    where blocks and d.subscription = promote_heads.subscription and d.lane = 0
                      and d.key between k.key and k.key and d.state = 'parked'
                    order by d.key, d."position"
                    limit 1
                )
            ) h
            order by h."position"
            limit 1
        ) l
        left join lateral (
            select d."position" from :"schema".deliveries d
            where d.subscription = promote_heads.subscription and d.key between k.key and k.key and d.head
            order by d.key
            limit 1
        ) h on true
        where h."position" is null);
    update :"schema".deliveries d set head = true where d.ctid = any (row_ids);
    return cardinality(row_ids);
end $$;

-- Makes out the heads of these keys, which are locked: the one that runs, or the lowest. One that is just being claimed
-- is waited for: it runs then. Tells how many are new.
create function :"schema".place_heads(subscription bigint, keys text[], blocks boolean) returns bigint
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
    row_ids tid[];
begin
    row_ids := array(
        select d.row_id
        from unnest(keys) k(key)
        cross join lateral (
            select d.ctid as row_id
            from :"schema".deliveries d
            where d.subscription = place_heads.subscription and d.key between k.key and k.key and d.head is null
            order by d.key
            limit 9223372036854775807
        ) d
        union all
        select d.row_id
        from unnest(keys) k(key)
        cross join lateral (
            select d.ctid as row_id, d."position"
            from :"schema".deliveries d
            where d.subscription = place_heads.subscription and d.key between k.key and k.key and d.head
              and d.claim is null
            order by d.key
            limit 9223372036854775807
        ) d
        left join lateral (
            select b."position" from :"schema".deliveries b
            where b.subscription = place_heads.subscription and b.lane = 0 and b.key between k.key and k.key
              and b."position" < d."position" and b.state in ('waiting', 'running', 'retrying', 'unrouted')
            order by b.key, b."position"
            limit 1
        ) a on true
        left join lateral (
            select b."position" from :"schema".deliveries b
            where blocks and b.subscription = place_heads.subscription and b.lane = 0
              and b.key between k.key and k.key and b."position" < d."position" and b.state = 'parked'
            order by b.key, b."position"
            limit 1
        ) p on true
        where a."position" is not null or p."position" is not null);
    -- By where they were: one that is claimed meanwhile is elsewhere then.
    update :"schema".deliveries d set head = false where d.ctid = any (row_ids);
    return :"schema".promote_heads(subscription, keys, blocks);
end $$;

-- Rows of keys that somebody was at work on when they came get their place, some at a time. Nobody is waited for.
create function :"schema".place_unsure(subscription bigint, blocks boolean) returns void
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    keys text[] := :"schema".try_lock_keys(subscription, array(
        select distinct u.key
        from (
            select d.key from :"schema".deliveries d
            where d.subscription = place_unsure.subscription and d.head is null
            order by d.key
            limit 512
        ) u));
begin
    -- Not those whose head is just being claimed.
    keys := array(
        select k.key
        from unnest(keys) k(key)
        left join lateral (
            select d."position" from :"schema".deliveries d
            where d.subscription = place_unsure.subscription and d.key between k.key and k.key and d.head
            order by d.key
            limit 1
        ) h on true
        left join lateral (
            select d."position" from :"schema".deliveries d
            where d.subscription = place_unsure.subscription and d."position" = h."position"
            limit 1
            for no key update skip locked
        ) f on true
        where h."position" is not distinct from f."position");
    perform :"schema".place_heads(subscription, keys, blocks);
end $$;

-- Makes out all heads of a subscription from scratch: its rows were moved about, or its order or its policy is another.
-- False if somebody is at work on it.
create function :"schema".place_all(subscription bigint, blocks boolean, headed text) returns boolean
language plpgsql volatile
as $$
begin
    perform from :"schema".subscriptions s where s.id = place_all.subscription for no key update skip locked;
    if not found or not pg_try_advisory_xact_lock(hashtextextended(:'schema', subscription)) then
        return false;
    end if;
    insert into :"schema".lanes (subscription, lane) values (place_all.subscription, 0) on conflict do nothing;
    perform from :"schema".deliveries d where d.subscription = place_all.subscription and d.head for no key update;
    with holding as (
        select d."position", d.key, d.claim is not null as runs
        from :"schema".deliveries d
        where d.subscription = place_all.subscription
          and (d.state in ('waiting', 'running', 'retrying', 'unrouted') or blocks and d.state = 'parked')
    ), heads as (
        select h."position" from holding h where h.key is null
        union all
        (
            select distinct on (h.key) h."position"
            from holding h
            where h.key is not null
            order by h.key, h.runs desc, h."position"
        )
    ), placed as (
        select d."position", h."position" is not null as head
        from :"schema".deliveries d
        left join heads h on h."position" = d."position"
        where d.subscription = place_all.subscription
    )
    update :"schema".deliveries d set head = p.head
    from placed p
    where d.subscription = place_all.subscription and d."position" = p."position" and d.head is distinct from p.head;
    update :"schema".subscriptions s set headed = place_all.headed where s.id = place_all.subscription;
    return true;
end $$;

-- Somebody may wait for what has just become ready: who sleeps has marked that first, as readers of the log do.
create function :"schema".wake_pullers(subscription bigint) returns void
language plpgsql volatile
as $$
begin
    if exists (select from :"schema".sleeps s where s.until > (select :"schema".clock())) then
        perform pg_notify(:'schema', 'pull ' || subscription);
    end if;
end $$;

-- Whether a position is in ranges: first, last, first, last, …
create function :"schema".is_within("position" bigint, ranges bigint[]) returns boolean
language sql immutable
as $$
    select exists (
        select from generate_series(1, cardinality($2), 2) i where $1 between $2[i] and $2[i + 1])
$$;

-- Claims rows that are ready, up to a position and as many as there is room for: first those that are tried again, then
-- new ones. What others are claiming just now is left to them.
create function :"schema".claim_ready(
    subscription bigint, up_to bigint, most integer, bytes bigint, claim uuid, expires timestamptz, consumer text,
    out taken jsonb, out number integer, out size bigint
)
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
    now timestamptz := :"schema".clock();
begin
    with again as materialized (
        select d.ctid as row_id, d.size
        from :"schema".deliveries d
        where d.subscription = claim_ready.subscription and d.state = 'retrying' and d.head and d.due <= now
          and d."position" <= up_to
        order by d.due, d."position"
        limit most
        for no key update skip locked
    ), fresh as materialized (
        select d.ctid as row_id, d.size
        from :"schema".deliveries d
        where d.subscription = claim_ready.subscription and d.lane between 0 and 0 and d.state = 'waiting' and d.head
          and d."position" <= up_to
        order by d.lane, d."position"
        limit most - (select count(*) from again)
        for no key update skip locked
    ), chosen as (
        select c.row_id, sum(c.size) over (rows unbounded preceding) - c.size < bytes as fits
        from (select * from again union all select * from fresh) c
    ), claimed as (
        update :"schema".deliveries d
        set state = 'running', due = null, since = now, claim = claim_ready.claim, expires = claim_ready.expires,
            consumer = claim_ready.consumer, revision = d.revision + 1
        where d.ctid = any (array(select c.row_id from chosen c where c.fits))
        returning d."position", d.attempts, d.replay, d.size
    )
    select coalesce(jsonb_agg(jsonb_build_array(c."position", c.attempts + 1, c.replay) order by c."position"), '[]'),
           count(*), coalesce(sum(c.size), 0)
    into taken, number, size
    from claimed c;
end $$;

-- What of ranges lies above a position: first, last, first, last, …
create function :"schema".ranges_above(ranges bigint[], "position" bigint) returns bigint[]
language sql immutable
as $$
    select coalesce(array_agg(e."end" order by i, e.place), '{}')
    from generate_series(1, cardinality($1), 2) i
    cross join lateral (values (1, greatest($1[i], $2 + 1)), (2, $1[i + 1])) e(place, "end")
    where $1[i + 1] > $2
$$;

-- Which of messages that become rows are heads: of each key the first, if no row holds the key; null where the key is
-- not locked. And how many of the messages there is room for: up to the next head that could not be claimed.
create function :"schema".choose_heads(
    subscription bigint, sizes integer[], keys text[], locked text[], has_all boolean, blocks boolean,
    most integer, bytes bigint, out heads boolean[], out fits integer
)
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
begin
    with given as (
        select p.*, row_number() over (partition by p.key order by p.place) = 1 as is_first
        from unnest(sizes, keys) with ordinality p(size, key, place)
    ), headed as (
        select g.*, case
            when has_all or g.key = any (locked) then g.is_first and a."position" is null and p."position" is null
        end as head
        from given g
        left join lateral (
            select d."position" from :"schema".deliveries d
            where g.is_first and d.subscription = choose_heads.subscription and d.lane = 0
              and d.key between g.key and g.key and d.state in ('waiting', 'running', 'retrying', 'unrouted')
            order by d.key, d."position"
            limit 1
        ) a on true
        left join lateral (
            select d."position" from :"schema".deliveries d
            where blocks and g.is_first and d.subscription = choose_heads.subscription and d.lane = 0
              and d.key between g.key and g.key and d.state = 'parked'
            order by d.key, d."position"
            limit 1
        ) p on true
    ), counted as (
        select h.*, count(*) filter (where h.head) over so_far <= most
               and sum(h.size) filter (where h.head) over so_far - h.size < bytes as has_room
        from headed h
        window so_far as (order by h.place rows unbounded preceding)
    )
    select array_agg(c.head order by c.place),
           coalesce(min(c.place) filter (where c.head and not c.has_room) - 1, count(*))
    into heads, fits
    from counted c;
end $$;

-- Messages become rows, and the cursor passes them, in this transaction; those that may be claimed are claimed at once,
-- and there it ends when there is no more room. The page says of which part of the log it is, and by what it was read:
-- it is of use as long as the cursor is within. Who is patient waits for another who does the same: not for long, since
-- that one waits for nobody.
create function :"schema".convert(
    subscription bigint, settings jsonb, page jsonb, positions bigint[], sizes integer[], keys text[],
    most integer, bytes bigint, claim uuid, expires timestamptz, consumer text, patient boolean,
    out outcome text,  -- converted; lost: somebody else was first; stale: read it again; full: enough rows wait already
    out reached bigint,  -- where the cursor is
    out taken bigint[], out replayed bigint[], out size bigint,
    out is_plain boolean  -- otherwise rows had to be placed among others, and none of them was claimed
)
language plpgsql volatile
set lock_timeout = '2s'
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
    opened :"schema".subscriptions;
    last record;
    now timestamptz := :"schema".clock();
    ordered boolean := settings ->> 'ordered_by' is not null;
    passed integer;
    heads boolean[];
    fits integer;
    all_keys text[];
    locked text[] := '{}';
begin
    outcome := 'lost';
    size := 0;
    -- Who changes the subscription, or is about to move it, is not waited for; and it waits for this.
    if patient then
        select s.* into opened from :"schema".lanes l, :"schema".subscriptions s
        where l.subscription = convert.subscription and l.lane = 0 and s.id = convert.subscription
        for no key update of l for share of s skip locked;
    else
        select s.* into opened from :"schema".lanes l, :"schema".subscriptions s
        where l.subscription = convert.subscription and l.lane = 0 and s.id = convert.subscription
        for no key update of l skip locked for share of s skip locked;
    end if;
    if not found or opened.status = 'paused' or opened.barrier is not null and opened.barrier_until >= now then
        return;
    end if;
    select c.*, r.ranges as again, c.ahead = '{}' and r.ranges is null as is_plain,
           opened.definition <> (page ->> 'number')::integer
               or coalesce(c.epoch, 0) <> (page ->> 'epoch')::bigint
               or page ->> 'life' is not null
               and not exists (select from :"schema".server_life l where l.token = (page ->> 'life')::uuid) as is_stale,
           (select sum(n.waiting) from :"schema".counts n where n.subscription = convert.subscription)
               >= (settings ->> 'max_waiting')::bigint as is_full
    into last
    from :"schema".cursors c
    left join :"schema".replays r on r.subscription = convert.subscription and r.lane = 0
    where c.subscription = convert.subscription and c.lane = 0
    order by c.revision desc
    limit 1;
    reached := last."position";
    is_plain := last.is_plain or not ordered;
    if last.is_stale then
        outcome := 'stale';
        return;
    elsif last."position" < (page ->> 'above')::bigint or last."position" >= (page ->> 'position')::bigint then
        return;
    elsif last.is_full then
        outcome := 'full';
        return;
    end if;

    passed := width_bucket(last."position", positions);
    if passed > 0 then
        positions := positions[passed + 1:];
        sizes := sizes[passed + 1:];
        keys := keys[passed + 1:];
    end if;
    if ordered then
        all_keys := array(select distinct k from unnest(keys) k);
        -- Unless later ones of a key may be there already.
        if last.is_plain then
            locked := :"schema".try_lock_keys(subscription, all_keys);
        end if;
        select c.heads, c.fits into heads, fits
        from :"schema".choose_heads(
            subscription, sizes, keys, locked, cardinality(locked) = cardinality(all_keys),
            settings ->> 'on_park' = 'block', most, bytes) c;
    elsif (page ->> 'size')::bigint <= bytes then
        fits := least(most, cardinality(positions));
    else
        fits := (
            select count(*)
            from (select sum(s) over (rows unbounded preceding) - s as before from unnest(sizes[:most]) s) s
            where s.before < bytes);
    end if;
    reached := case
        when fits < cardinality(positions) then positions[fits + 1] - 1
        else (page ->> 'position')::bigint
    end;

    outcome := 'converted';
    insert into :"schema".cursors (subscription, lane, revision, epoch, released, "position", ahead)
    values (subscription, 0, last.revision + 1, last.epoch, last.released, reached,
            case when last.is_plain then '{}' else :"schema".ranges_above(last.ahead, reached) end);
    if (last.revision + 1) % 64 = 0 then
        delete from :"schema".cursors c
        where c.subscription = convert.subscription and c.lane = 0
          and c.revision between last.revision - 127 and last.revision and c.taken is null;
    end if;
    if fits > 0 then
        with inserted as (
            insert into :"schema".deliveries
                (subscription, "position", lane, attempts, total, size, revision, since, state, key, head, replay, claim,
                 expires, consumer)
            select convert.subscription, p."position", 0, 0, 0, p.size, 1, now,
                   case when p.head then 'running' else 'waiting' end, p.key, p.head,
                   case
                       when last.again is null or page -> 'fresh' @> to_jsonb(p."position") then false
                       else :"schema".is_within(p."position", last.again)
                   end,
                   case when p.head then convert.claim end, case when p.head then convert.expires end,
                   case when p.head then convert.consumer end
            from (
                select g."position", g.size, g.key, case when ordered then g.head else true end as head
                from unnest(positions[:fits], sizes[:fits], keys[:fits], heads[:fits])
                    g("position", size, key, head)
            ) p
            returning deliveries."position", deliveries.claim, deliveries.replay, deliveries.size
        )
        select array_agg(i."position") filter (where i.claim is not null),
               array_agg(i."position") filter (where i.replay),
               coalesce(sum(i.size) filter (where i.claim is not null), 0)
        into taken, replayed, size
        from inserted i;
    end if;
    if not last.is_plain then
        delete from :"schema".replays r
        where r.subscription = convert.subscription and r.lane = 0 and r.ranges[cardinality(r.ranges)] <= reached;
        if ordered then
            perform :"schema".place_unsure(subscription, settings ->> 'on_park' = 'block');
        end if;
    end if;
end $$;

-- Done rows that were kept for long enough go, some at a time.
create function :"schema".prune_done(subscription bigint, before timestamptz) returns void
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
    gone tid[] := array(
        select o.ctid from :"schema".deliveries o
        where o.subscription = prune_done.subscription and o.state = 'done' and o.since < before
        order by o.since
        limit 1000
        for no key update skip locked);
begin
    -- Workers call this all the time: without such rows they wait for nobody who holds up writers of the table.
    if cardinality(gone) > 0 then
        delete from :"schema".deliveries d where d.ctid = any (gone);
    end if;
end $$;

-- What whoever pulls does: claims rows that are ready, and then, if a page of the log comes along and there is room,
-- what becomes of that. In a caller's transaction, which may be long, it only claims, and waits for nobody. Tells all that
-- there is to know; null: there is no such subscription.
create function :"schema".pull(
    "group" text, name text, most integer, bytes bigint, seconds float8, consumer text, own boolean,
    page jsonb, positions bigint[], sizes integer[], keys text[]
) returns json
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
declare
    opened record;
    found record;
    claim uuid;
    room integer := most;
    taken jsonb := '[]';
    count integer := 0;
    volume bigint := 0;
    placed record;
    is_plain boolean;
    outcome text;
    reached bigint;
    fresh bigint[];
    replayed bigint[];
begin
    select s.*, s.in_code or s.settings ->> 'tracking' <> 'all' as is_other, c.epoch, c."position", c.ahead,
           s.settings ->> 'on_park' = 'block' as blocks,
           -- What is to come again, of the same key, comes first.
           case when s.settings ->> 'ordered_by' is null then 9223372036854775807 else c."position" end as claimable,
           s.status = 'paused' or s.barrier is not null and s.barrier_until >= n.now as rests,
           format('%s %s %s', c.epoch, s.definition, s.settings ->> 'on_park') as headed_for,
           :"schema".moment(coalesce(seconds, (s.settings ->> 'timeout')::float8)) as expires, n.now
    into opened
    from :"schema".subscriptions s
    cross join (select :"schema".clock() as now) n
    left join lateral (
        select coalesce(c.epoch, 0) as epoch, c."position", c.ahead from :"schema".cursors c
        where c.subscription = s.id and c.lane = 0
        order by c.revision desc
        limit 1
    ) c on true
    where s."group" = pull."group" and s.name = pull.name;
    if opened.id is null then
        return null;
    elsif opened.is_other then
        return json_build_object('in_code', opened.in_code, 'tracking', opened.settings ->> 'tracking');
    end if;

    if opened.rests or opened.headed is distinct from opened.headed_for
        and not (own and :"schema".place_all(opened.id, opened.blocks, opened.headed_for))
    then
        room := 0;
    end if;
    -- In the order of an index each: by what was there when it was planned, any index would do to see whether there is
    -- one, and the wrong one is read from its beginning to its end.
    select (
               select true from :"schema".deliveries d
               where d.subscription = opened.id and d.head is null
               order by d.key limit 1
           ) is not null as has_unsure,
           (
               select true from :"schema".deliveries d
               where d.subscription = opened.id and d.lane between 0 and 0 and d.state = 'waiting' and d.head
               order by d.lane, d."position" limit 1
           ) is not null as has_ready,
           (
               select d.due from :"schema".deliveries d
               where d.subscription = opened.id and d.state = 'retrying' and d.head
               order by d.due limit 1
           ) as due,
           (
               select d.expires from :"schema".deliveries d
               where d.subscription = opened.id and d.claim is not null
               order by d.expires limit 1
           ) as expiry
    into found;
    if opened.stalled is not null then
        -- One at a time, until one succeeds.
        room := case when found.expiry is null then least(room, 1) else 0 end;
    end if;
    if room > 0 then
        claim := gen_random_uuid();
        if own and found.has_unsure then
            perform :"schema".place_unsure(opened.id, opened.blocks);
        end if;
        if found.has_ready or found.has_unsure or found.due <= opened.now then
            select c.taken, c.number, c.size into taken, count, volume
            from :"schema".claim_ready(
                opened.id, opened.claimable, room, bytes, claim, opened.expires, consumer) c;
        end if;
        if page is not null and room > count and volume < bytes then
            -- Who has claimed something leaves the log to others.
            select c.outcome, c.reached, c.taken, c.replayed, volume + c.size, c.is_plain
            into outcome, reached, fresh, replayed, volume, is_plain
            from :"schema".convert(
                opened.id, opened.settings, page, positions, sizes, keys, room - count, bytes - volume, claim,
                opened.expires, consumer, count = 0) c;
            if outcome = 'converted' and not is_plain then
                select c.* into placed
                from :"schema".claim_ready(
                    opened.id, reached, room - count, bytes - volume, claim, opened.expires, consumer) c;
                taken := taken || placed.taken;
                volume := volume + placed.size;
            end if;
        end if;
    end if;
    if own then
        -- Nothing is lost with a claim but time: only settlements wait for the disk.
        perform set_config('synchronous_commit', 'off', true);
        -- Where none are kept any more, some may be left from when they were.
        if opened.settings ->> 'keep_done' is not null or random() < 0.03 then
            perform :"schema".prune_done(
                opened.id, opened.now - make_interval(secs => coalesce((opened.settings ->> 'keep_done')::float8, 0)));
        end if;
        if random() < 0.03 then
            perform :"schema".fold_counts(opened.id);
        end if;
    end if;
    return json_build_object(
        'id', opened.id, 'number', opened.definition, 'settings', opened.settings,
        'since', :"schema".since_of(opened.since, opened.since_above),
        'status', opened.status, 'stalled', opened.stalled, 'rests', opened.rests, 'epoch', opened.epoch, 'position', coalesce(reached, opened."position"),
        'ahead', opened.ahead, 'claim', coalesce(replace(claim::text, '-', ''), ''), 'expires', opened.expires,
        'memories', case
            when exists (select from :"schema".replays r where r.subscription = opened.id) then
                :"schema".remembered(opened.id)
        end,
        'ready', taken, 'outcome', outcome, 'converted', fresh, 'replayed', replayed, 'size', volume,
        'is_overdue', coalesce(found.expiry <= opened.now, false),
        'wait', date_part('epoch', least(found.expiry, found.due) - opened.now),
        'unread', not own and exists (
            select from :"schema".messages m where m."position" > opened."position"));
end $$;

-- Attempts of rows, which are locked, have failed: they are tried again when the policy says, or after so many seconds,
-- or parked.
create function :"schema".fail_rows(
    row_ids tid[], outcomes text[], reasons text[], errors text[], settings jsonb, after float8
) returns void
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    now timestamptz := :"schema".clock();
    policy jsonb := settings -> 'retry';
    most integer := policy ->> 'attempts';
    blocks boolean := settings ->> 'on_park' = 'block';
begin
    update :"schema".deliveries d
    set state = case when g.parks or d.attempts + 1 >= most then 'parked' else 'retrying' end,
        due = case
            when not g.parks and d.attempts + 1 < most then
                :"schema".moment(coalesce(after, :"schema".retry_wait(policy, d.attempts + 1)))
        end,
        head = d.head and (blocks or not g.parks and d.attempts + 1 < most),
        attempts = d.attempts + 1, total = d.total + 1, since = now, claim = null, expires = null,
        reason = coalesce(g.reason, ''), error = coalesce(g.error, ''), revision = d.revision + 1
    from (
        -- A reason is one line, whoever gives it.
        select u.row_id, coalesce(u.outcome = 'park', false) as parks, u.error,
               regexp_replace(btrim(u.reason, E' \t\r\n\f\v'), '\s*[\n\r\v\f\u0085\u2028\u2029]\s*', ' ', 'g') as reason
        from unnest(row_ids, outcomes, reasons, errors) u(row_id, outcome, reason, error)
    ) g
    where d.ctid = g.row_id;
end $$;

-- What attempts that ended mean for the subscription as a whole, if anything. Who does the same just now is not waited
-- for: it counts that one.
create function :"schema".judge_claims(opened :"schema".subscriptions, succeeded bigint, failed bigint) returns void
language plpgsql volatile
as $$
begin
    if failed = 0 and opened.streak = 0 and opened.stalled is null then
        return;
    end if;
    perform from :"schema".subscriptions s where s.id = opened.id for no key update skip locked;
    if found then
        perform :"schema".judge(
            opened.id, succeeded, failed,
            (select coalesce(sum(n.retrying), 0)::bigint from :"schema".counts n where n.subscription = opened.id),
            (opened.settings ->> 'stall_after')::bigint);
    end if;
end $$;

-- Settles claims of one subscription: `ack`, `skip`, `retry`, `park`, or `extend` by so many seconds from now on. Tells
-- which of them held, by their places. Rows are locked before they are changed, in the order in which they are given.
create function :"schema".settle_claims(
    opened :"schema".subscriptions, positions bigint[], claims uuid[], outcomes text[], reasons text[], errors text[],
    after float8, seconds float8
) returns integer[]
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
    blocks boolean := opened.settings ->> 'on_park' = 'block';
    keys text[] := '{}';
    held record;
    ready bigint := 0;
begin
    -- A claim is compared in a way that no index over claims serves: the row is found by its place alone.
    if opened.settings ->> 'ordered_by' is not null then
        keys := array(
            select distinct d.key
            from unnest(positions, claims, outcomes) g("position", claim, outcome)
            cross join lateral (
                select d.key from :"schema".deliveries d
                where d.subscription = opened.id and d."position" = g."position"
                  and d.claim is not distinct from g.claim
                limit 1
            ) d
            where g.outcome <> 'extend' and d.key is not null);
        perform :"schema".lock_keys(opened.id, keys);
    end if;
    select array_agg(g.place) as places, array_agg(d.row_id) filter (where g.outcome in ('ack', 'skip')) as finished,
           array_agg(d.row_id) filter (where g.outcome = 'extend') as extended,
           array_agg(d.row_id) filter (where g.outcome in ('retry', 'park')) as failed,
           array_agg(g.outcome) filter (where g.outcome in ('retry', 'park')) as outcomes,
           array_agg(g.reason) filter (where g.outcome in ('retry', 'park')) as reasons,
           array_agg(g.error) filter (where g.outcome in ('retry', 'park')) as errors
    into held
    from unnest(positions, claims, outcomes, reasons, errors)
        with ordinality g("position", claim, outcome, reason, error, place)
    cross join lateral (
        select d.ctid as row_id from :"schema".deliveries d
        where d.subscription = opened.id and d."position" = g."position" and d.claim is not distinct from g.claim
        limit 1
        for no key update
    ) d;

    if held.finished is not null and opened.settings ->> 'keep_done' is null then
        delete from :"schema".deliveries d where d.ctid = any (held.finished);
    elsif held.finished is not null then
        update :"schema".deliveries d
        set state = 'done', head = false, attempts = d.attempts + 1, total = d.total + 1, since = :"schema".clock(),
            claim = null, expires = null, reason = '', error = '', revision = d.revision + 1
        where d.ctid = any (held.finished);
    end if;
    if held.failed is not null then
        perform :"schema".fail_rows(
            held.failed, held.outcomes, held.reasons, held.errors, opened.settings, after);
    end if;
    if held.extended is not null then
        update :"schema".deliveries d
        set expires = :"schema".moment(coalesce(seconds, (opened.settings ->> 'timeout')::float8)),
            revision = d.revision + 1
        where d.ctid = any (held.extended);
    end if;

    if cardinality(keys) > 0 then
        ready := case
            when held.failed is null then :"schema".promote_heads(opened.id, keys, blocks)
            else :"schema".place_heads(opened.id, keys, blocks)
        end;
    end if;
    if held.finished is not null or held.failed is not null then
        perform :"schema".judge_claims(
            opened, coalesce(cardinality(held.finished), 0), coalesce(cardinality(held.failed), 0));
    end if;
    if ready > 0 or held.failed is not null or held.finished is not null and opened.stalled is not null then
        perform :"schema".wake_pullers(opened.id);
    end if;
    return held.places;
end $$;

-- The usual settlement, of claims that nothing waits behind: they are done, and their rows go. Tells which of them held,
-- by their places.
create function :"schema".finish_claims(subscription bigint, positions bigint[], claims uuid[]) returns integer[]
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
    held integer[];
begin
    with gone as (
        delete from :"schema".deliveries d
        using unnest(positions, claims) with ordinality g("position", claim, place)
        cross join lateral (
            select r.ctid as row_id from :"schema".deliveries r
            where r.subscription = finish_claims.subscription and r."position" = g."position"
            limit 1
        ) r
        where d.ctid = r.row_id and d.claim is not distinct from g.claim
        returning g.place
    )
    select array_agg(g.place) into held from gone g;
    return held;
end $$;

-- Claims of whatever subscriptions, in one order, whoever settles: the lowest subscription and the lowest position first.
create function :"schema".settle_all(
    subscriptions bigint[], positions bigint[], claims uuid[], outcomes text[], reasons text[], errors text[],
    after float8, seconds float8
) returns integer[]
language plpgsql volatile
set plan_cache_mode = force_generic_plan
as $$
declare
    opened :"schema".subscriptions;
    held integer[];
    all_held integer[] := '{}';
    given record;
begin
    for opened in
        select s.* from :"schema".subscriptions s
        where s.id in (select unnest(settle_all.subscriptions))
        order by s.id
    loop
        if subscriptions[1] = all (subscriptions) and 'ack' = all (outcomes) and opened.settings ->> 'ordered_by' is null
            and opened.settings ->> 'keep_done' is null and opened.streak = 0 and opened.stalled is null
        then
            held := :"schema".finish_claims(opened.id, positions, claims);
            if cardinality(held) = cardinality(positions) then
                return held;
            end if;
            all_held := coalesce(held, '{}');
        end if;
        -- What is left may just be changing: it is locked first.
        select array_agg(g.place order by g."position") as places,
               array_agg(g."position" order by g."position") as positions,
               array_agg(g.claim order by g."position") as claims,
               array_agg(g.outcome order by g."position") as outcomes,
               array_agg(g.reason order by g."position") as reasons,
               array_agg(g.error order by g."position") as errors
        into given
        from unnest(settle_all.subscriptions, positions, claims, outcomes, reasons, errors)
            with ordinality g(subscription, "position", claim, outcome, reason, error, place)
        where g.subscription = opened.id and not g.place = any (all_held);
        held := :"schema".settle_claims(
            opened, given.positions, given.claims, given.outcomes, given.reasons, given.errors, after, seconds);
        all_held := all_held || array(select given.places[i] from unnest(held) i);
    end loop;
    return all_held;
end $$;

-- For SQL: settles what was pulled, by its tokens, in your transaction. ack: done; retry: it failed, and comes again when
-- the policy says, or after an interval; park: given up until a person decides; skip: not wanted; extend: it takes
-- longer, and keeps its claim for `timeout` from now on. Look at what was refused: those claims are no longer yours, or
-- never were.
create function :"schema".settle(
    ack text[] default '{}', retry text[] default '{}', park text[] default '{}', skip text[] default '{}',
    extend text[] default '{}', reason text default '', after interval default null, timeout interval default null,
    out moved bigint, out refused text[]
)
language plpgsql volatile
as $$
declare
    tokens text[];
    outcomes text[];
    held integer[];
begin
    if extract(epoch from after) not between 0 and 3162240000 then
        raise invalid_parameter_value using message =
            'after: an interval from 0 seconds to a hundred years is wanted, not ' || after;
    elsif extract(epoch from timeout) <= 0 or extract(epoch from timeout) > 3162240000 then
        raise invalid_parameter_value using message =
            'timeout: an interval of more than 0 seconds and at most a hundred years is wanted, not ' || timeout;
    end if;
    select coalesce(array_agg(g.token), '{}'), array_agg(g.outcome) into tokens, outcomes
    from (
        select unnest(ack), 'ack' union select unnest(retry), 'retry' union select unnest(park), 'park'
        union select unnest(skip), 'skip' union select unnest(extend), 'extend'
    ) g(token, outcome)
    where g.token ~ '^[1-9][0-9]{0,17}-[1-9][0-9]{0,17}-[0-9a-f]{32}$';
    if cardinality(tokens) > (select count(distinct t) from unnest(tokens) t) then
        raise invalid_parameter_value using message = 'a token is there twice, with different outcomes';
    end if;
    held := :"schema".settle_all(
        array(select split_part(t, '-', 1)::bigint from unnest(tokens) t),
        array(select split_part(t, '-', 2)::bigint from unnest(tokens) t),
        array(select split_part(t, '-', 3)::uuid from unnest(tokens) t),
        outcomes, array_fill(reason, array[cardinality(tokens)]), null, extract(epoch from after)::float8,
        extract(epoch from timeout)::float8);
    moved := cardinality(held);
    refused := array(
        select t from unnest(ack || retry || park || skip || extend) t
        except
        select tokens[i] from unnest(held) i);
end $$;

-- Claims that have expired, some at a time, count as attempts that failed; tells which, how long each was held, and what
-- becomes of it. Where somebody is at work on the key, it is for the next who looks.
create function :"schema".expire_claims(subscription bigint, most integer)
returns table ("position" bigint, seconds float8, state text, attempts integer, due float8, reason text)
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
#variable_conflict use_column
declare
    opened :"schema".subscriptions;
    now timestamptz := :"schema".clock();
    expired record;
    locked text[];
begin
    select * into opened from :"schema".subscriptions s where s.id = expire_claims.subscription;
    select array_agg(d.row_id) as row_ids, array_agg(d.key) as keys, array_agg(d."position") as positions,
           array_agg(date_part('epoch', now - d.since)) as seconds,
           array_agg(format('its claim expired: %s did not settle it in time', d.consumer)) as reasons
    into expired
    from (
        select d.ctid as row_id, d.key, d."position", d.since, d.consumer
        from :"schema".deliveries d
        where d.subscription = expire_claims.subscription and d.claim is not null and d.expires <= now
        order by d.expires
        limit most
        for no key update skip locked
    ) d;
    locked := :"schema".try_lock_keys(subscription, array_remove(expired.keys, null));
    select array_agg(r.row_id) as row_ids, array_agg(r."position") as positions, array_agg(r.seconds) as seconds,
           array_agg(r.reason) as reasons
    into expired
    from unnest(expired.row_ids, expired.keys, expired.positions, expired.seconds, expired.reasons)
        r(row_id, key, "position", seconds, reason)
    where r.key is null or r.key = any (locked);
    if expired.row_ids is null then
        return;
    end if;
    perform :"schema".fail_rows(expired.row_ids, null, expired.reasons, null, opened.settings, null);
    if cardinality(locked) > 0 then
        perform :"schema".place_heads(subscription, locked, opened.settings ->> 'on_park' = 'block');
    end if;
    perform :"schema".judge_claims(opened, 0, cardinality(expired.row_ids));
    return query
        select g."position", g.seconds, d.state, d.attempts, date_part('epoch', d.due), d.reason
        from unnest(expired.positions, expired.seconds) g("position", seconds)
        cross join lateral (
            select d.* from :"schema".deliveries d
            where d.subscription = expire_claims.subscription and d."position" = g."position"
            limit 1
        ) d;
end $$;

-- A person decides about deliveries. What each says now is locked first, one by one and in order, and what it is moved
-- from is what it says then: an owner that writes it at the same moment is waited for, and what an owner writes later
-- does not find its revision. Whoever works on them is to look at once. A plan from when there were few rows does not read
-- them all.
--
-- Of two people who decide at once one moves a delivery, and the other is told. Where they were chosen by their state,
-- `seen` and `revisions` have what each said then: the state must be the same, and the revision too if the decision
-- leaves the state as it is. One without these was named by its position. Only a person moves what is parked: if it was
-- parked when this began, it must still be.
create function :"schema".decide(
    subscription bigint, positions bigint[], seen text[], revisions bigint[], becomes text, applies_to text[],
    anew boolean
) returns table ("position" bigint, state text, moved boolean)
language plpgsql volatile
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    opened :"schema".subscriptions;
    is_pulled boolean;
    keys text[];
    before text[];
    places bigint[];
    states text[];
    row_ids tid[];
    decided boolean[];
    now timestamptz;
begin
    select * into opened from :"schema".subscriptions s where s.id = decide.subscription;
    -- Before anybody is waited for.
    before := array(
        select coalesce(p.seen, d.state)
        from unnest(positions, seen) with ordinality p("position", seen, place)
        left join lateral (
            select d.state from :"schema".deliveries d
            where p.seen is null and d.subscription = decide.subscription and d."position" = p."position"
            limit 1
        ) d on true
        order by p.place);
    is_pulled := not opened.in_code and opened.settings ->> 'tracking' = 'all';
    if is_pulled then
        keys := array(
            select distinct d.key
            from unnest(positions) p("position")
            cross join lateral (
                select d.key from :"schema".deliveries d
                where d.subscription = decide.subscription and d."position" = p."position"
                limit 1
            ) d
            where d.key is not null);
        perform :"schema".lock_keys(decide.subscription, keys);
    end if;
    select array_agg(l."position"), array_agg(l.state), array_agg(l.row_id),
           array_agg(coalesce(
               l.state = any (applies_to)
               and case
                       when l.known is null then l.before is distinct from 'parked' or l.state = 'parked'
                       else l.state = l.before and (l.state <> becomes or l.revision = l.known)
                   end, false))
    into places, states, row_ids, decided
    from (
        select p."position", p.before, p.known, d.state, d.revision, d.row_id
        from (
            select distinct on (p."position") p."position", p.before, p.known
            from unnest(positions, before, revisions) p("position", before, known)
            order by p."position"
        ) p
        left join lateral (
            select d.state, d.revision, d.ctid as row_id from :"schema".deliveries d
            where d.subscription = decide.subscription and d."position" = p."position"
            limit 1
            for no key update
        ) d on true
    ) l;
    now := :"schema".clock();
    update :"schema".deliveries d
    set state = becomes, attempts = case when anew then 0 else d.attempts end, since = now, waits_since = null,
        -- An owner looks at what is due; who pulls has nothing to do with what is skipped.
        due = case when becomes = 'retrying' or not is_pulled then now end,
        head = is_pulled and becomes = 'retrying' and d.key is null, revision = d.revision + 1
    where d.ctid = any (array(select r.id from unnest(row_ids, decided) r(id, is_meant) where r.is_meant));
    if true = any (decided) and is_pulled then
        perform :"schema".place_heads(decide.subscription, keys, opened.settings ->> 'on_park' = 'block');
    end if;
    if true = any (decided) then
        perform :"schema".act(decide.subscription);
    end if;
    return query
    select * from unnest(places, states, decided) as d("position", state, moved) order by d."position";
end $$;

-- Settling once: who asks again because an answer was lost is answered as before.
create table :"schema".settled (
    id uuid primary key,  -- of the request, from whoever made it
    asked text not null,  -- a digest of what it was about
    refused integer[] not null,  -- the places of the claims that did not hold
    at timestamptz not null
);
create index settled_at on :"schema".settled (at);

-- What `settle_all` does, and tells: `held` are the places of the claims that held. Within five minutes the same request
-- changes nothing, and is told the same; `again` says so, and is null if its id belongs to another request.
create function :"schema".settle_once(
    id uuid, subscriptions bigint[], positions bigint[], claims uuid[], outcomes text[], reasons text[], errors text[],
    after float8, seconds float8, out held integer[], out again boolean
)
language plpgsql volatile
set plan_cache_mode = force_generic_plan
as $$
declare
    digest text := md5(concat(subscriptions, positions, claims, outcomes));
    places integer[] := array(select generate_series(1, cardinality(positions)));
    known record;
begin
    -- The first may still be under way: it is waited for, and looked for in the next statement.
    perform pg_advisory_xact_lock(hashtextextended(settle_once.id::text, hashtextextended(:'schema', 0)));
    select s.asked, s.refused into known from :"schema".settled s where s.id = settle_once.id;
    if found then
        again := case when known.asked = digest then true end;
        held := case when again then array(select unnest(places) except select unnest(known.refused)) else '{0}' end;
        return;
    end if;
    again := false;
    held := :"schema".settle_all(subscriptions, positions, claims, outcomes, reasons, errors, after, seconds);
    insert into :"schema".settled
    select settle_once.id, digest, array(select unnest(places) except select unnest(held)), :"schema".clock();
    -- More than came, so that there are never many.
    delete from :"schema".settled s
    where s.id = any (array(
        select o.id from :"schema".settled o
        where o.at < :"schema".clock() - interval '5 minutes'
        order by o.at
        limit 10
        for update skip locked));
end $$;

-- The lanes of a subscription that read no further, each with the limit that is reached, as their workers told a moment
-- ago. Of one that is pulled nobody has to tell: what waits is counted, and names the key.
create function :"schema".stopped_lanes(of :"schema".subscriptions) returns table (lane integer, "limit" jsonb)
language sql stable
as $$
    select distinct on (t.lane) t.lane, t."limit"
    from :"schema".reports r
    cross join lateral jsonb_to_recordset(r.stopped) as t(lane integer, "limit" jsonb)
    where r.subscription = (of).id and r.until >= :"schema".clock() and t.lane < (of).lanes
    union all
    select 0, jsonb_build_object(
        'limit', 'max_waiting', 'most', (of).settings -> 'max_waiting', 'rows', n.waiting,
        'key', (
            select d.key from :"schema".deliveries d
            where d.subscription = (of).id and d.lane = 0 and d.state = 'waiting' and d.head is not true
            order by d."position" limit 1))
    from (select sum(c.waiting) as waiting from :"schema".counts c where c.subscription = (of).id) n
    where not (of).in_code and (of).settings ->> 'tracking' = 'all' and (of).settings ->> 'ordered_by' is not null
      and n.waiting >= ((of).settings ->> 'max_waiting')::bigint
$$;
