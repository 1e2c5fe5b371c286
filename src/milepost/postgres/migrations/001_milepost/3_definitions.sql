-- Definitions: what subscriptions select and how they order, and how that changes while programs run.

-- The subscription of a name, or of one that had it before, if that is nobody's now.
create function :"schema".named("group" text, name text) returns bigint
language sql stable
as $$
    select s.id from :"schema".subscriptions s
    where s."group" = $1 and (s.name = $2 or $2 = any (s.former))
    order by s.name = $2 desc, s.created desc, s.id
    limit 1
$$;

-- Whether a worker lives: it told something within its lease, or it beats.
create function :"schema".lives(worker text, until timestamptz) returns boolean
language sql stable
as $$
    select until >= :"schema".clock() or exists (
        select from :"schema".workers w where w.id = $1 and w.beat + w.lease >= :"schema".clock())
$$;

-- Whether a live worker, other than one, runs a subscription, by a definition above a number.
create function :"schema".is_run(subscription bigint, besides text, above integer) returns boolean
language sql stable
as $$
    select exists (
        select from :"schema".serving v
        where v.subscription = $1 and v.runs and v.number > $3 and v.worker is distinct from $2
          and :"schema".lives(v.worker, v.until))
$$;

-- Whether a live worker has a lane, or something of it still runs there.
create function :"schema".is_held(subscription bigint, lane integer) returns boolean
language sql stable
as $$
    select exists (
        select from :"schema".serving v
        where v.subscription = $1 and $2 = any (v.lanes) and :"schema".lives(v.worker, v.until))
$$;

-- The subscription of a definition, locked: found by its name, by a former one, or made. One that a newer program has
-- renamed keeps its new name as long as that runs. What `others` of the program are named is theirs.
create function :"schema".open_subscription(
    declared jsonb, others text[] default '{}', worker text default null,
    out opened :"schema".subscriptions, out created boolean, out renamed text
)
language plpgsql volatile
as $$
begin
    created := false;
    loop
        select * into opened from :"schema".subscriptions s
        where s."group" = declared ->> 'group' and s.name = declared ->> 'name'
        for no key update;
        exit when found;
        begin
            select * into opened from :"schema".subscriptions s
            where s."group" = declared ->> 'group'
              and (s.name = declared ->> 'renamed_from'
                   or declared ->> 'name' = any (s.former) and not s.name = any (others))
            order by s.name = declared ->> 'renamed_from' desc, s.created desc, s.id
            limit 1
            for no key update;
            if found then
                exit when opened.name is distinct from declared ->> 'renamed_from'
                    and :"schema".is_run(opened.id, worker, 0);
                renamed := opened.name;
                update :"schema".subscriptions s
                set name = declared ->> 'name',
                    former = array_append(array_remove(s.former, declared ->> 'name'), s.name)
                where s.id = opened.id
                returning s.* into opened;
                exit;
            end if;
            perform :"schema".require_life((declared ->> 'life')::uuid), :"schema".write_through();
            insert into :"schema".subscriptions ("group", name, lanes, status, since, since_above)
            values (declared ->> 'group', declared ->> 'name', (declared ->> 'lanes')::integer,
                    case when (declared ->> 'paused')::boolean then 'paused' else 'running' end,
                    (declared ->> 'since')::timestamptz, (declared ->> 'position')::bigint)
            returning subscriptions.* into opened;
            created := true;
            exit;
        exception when unique_violation then
            -- Another process was first: it is there now.
            null;
        end;
    end loop;
end $$;

-- The time before which messages are passed over, and above which position; null: there is none.
create function :"schema".since_of(since timestamptz, since_above bigint) returns jsonb
language sql stable
as $$
    select case when $1 is not null then jsonb_build_object('time', $1, 'above', $2) end
$$;

-- Where the lanes of a subscription stand together.
create function :"schema".stand(
    subscription bigint, lanes integer,
    out positions bigint[], out aheads jsonb, out lowest bigint, out highest bigint,
    out even boolean,  -- all at one position, with nothing ahead
    out held boolean,  -- by a live worker, at least one of them
    out released boolean  -- all in good order
)
language plpgsql stable
as $$
begin
    select array_agg(c."position" order by l), jsonb_agg(to_jsonb(c.ahead) order by l), min(c."position"),
           max(greatest(c."position", c.ahead[cardinality(c.ahead)])),
           min(c."position") = max(c."position") and bool_and(c.ahead = '{}'),
           bool_or(:"schema".is_held(stand.subscription, l)),
           bool_and(c.epoch is null or c.released)
    into positions, aheads, lowest, highest, even, held, released
    from generate_series(0, lanes - 1) l
    cross join lateral (
        select c."position", c.ahead, c.epoch, c.released from :"schema".cursors c
        where c.subscription = stand.subscription and c.lane = l
        order by c.revision desc limit 1
    ) c;
end $$;

-- A new revision of every lane, which fences whoever has it. A live worker lets it go in good order: whoever takes it
-- next need not think that it vanished. It has the time, as one that begins an epoch: it is what that owner would
-- insert, and must not go when the lane is taken next.
create function :"schema".fence(subscription bigint, lanes integer) returns void
language plpgsql volatile
as $$
declare
    last :"schema".cursors;
begin
    for wanted in 0 .. lanes - 1 loop
        loop
            select * into last from :"schema".cursors c
            where c.subscription = fence.subscription and c.lane = wanted
            order by c.revision desc limit 1;
            begin
                insert into :"schema".cursors (subscription, lane, revision, epoch, released, taken, "position", ahead)
                values (subscription, wanted, last.revision + 1, last.epoch,
                        last.released or :"schema".is_held(subscription, wanted), :"schema".clock(), last."position",
                        last.ahead);
                exit;
            exception when unique_violation then
                -- Its owner wrote at the same moment.
                null;
            end;
        end loop;
    end loop;
end $$;

-- Puts a lane somewhere, which fences whoever had it. Nobody should have: see barriers.
create function :"schema".put_lane(
    subscription bigint, lane integer, "position" bigint, ahead bigint[], released boolean
) returns void
language plpgsql volatile
as $$
begin
    insert into :"schema".cursors (subscription, lane, revision, epoch, released, taken, "position", ahead)
    select put_lane.subscription, put_lane.lane, coalesce(max(c.revision), 0) + 1,
           nextval(format('%I.epochs', :'schema')), put_lane.released, :"schema".clock(), put_lane."position",
           put_lane.ahead
    from :"schema".cursors c
    where c.subscription = put_lane.subscription and c.lane = put_lane.lane;
end $$;

-- Keeps the lanes of a subscription from going on, or beyond a position, for a while: whoever needs that asks again
-- before it ends. Tells whose barrier stands: another's is left alone.
create function :"schema".set_barrier(
    subscription bigint, barrier text, "position" bigint, during interval
) returns text
language plpgsql volatile
as $$
declare
    found :"schema".subscriptions;
begin
    select * into found from :"schema".subscriptions s where s.id = set_barrier.subscription for no key update;
    if found.barrier is not null and found.barrier_until >= :"schema".clock() then
        if found.barrier <> set_barrier.barrier then
            return found.barrier;
        end if;
    else
        found.barrier := null;
    end if;
    update :"schema".subscriptions s
    set barrier = set_barrier.barrier, barrier_until = :"schema".clock() + during,
        barrier_at = set_barrier."position", barrier_yields = false,
        -- What was forced by a command that failed is not by this one.
        forced = case when found.barrier is null and s.status <> 'paused' then 0 else s.forced end
    where s.id = set_barrier.subscription;
    if found.barrier is null or found.barrier_at is distinct from "position" or found.barrier_yields then
        perform :"schema".act(subscription);
    end if;
    return barrier;
end $$;

-- Lets all go on for a while: something takes long. Each worker that has lanes tells when what it waited for has ended.
-- Whoever needs the barrier keeps it by asking again.
create function :"schema".yield_barrier(subscription bigint, barrier text, during interval) returns void
language plpgsql volatile
as $$
declare
    found :"schema".subscriptions;
begin
    select * into found from :"schema".subscriptions s
    where s.id = yield_barrier.subscription and s.barrier = yield_barrier.barrier for no key update;
    if found.id is null then
        return;
    end if;
    update :"schema".subscriptions s set barrier_yields = true, barrier_until = :"schema".clock() + during
    where s.id = found.id;
    if not found.barrier_yields then
        update :"schema".serving v set waits = true
        where v.subscription = found.id and v.lanes <> '{}';
        perform :"schema".act(subscription);
    end if;
end $$;

-- Lets all go on.
create function :"schema".lift_barrier(subscription bigint, barrier text) returns void
language plpgsql volatile
as $$
begin
    update :"schema".subscriptions s
    set barrier = null, barrier_until = null, barrier_at = null, barrier_yields = false
    where s.id = lift_barrier.subscription and s.barrier = lift_barrier.barrier;
    if found then
        perform :"schema".act(subscription);
    end if;
end $$;

-- Whether messages that were handled before are being repeated.
create function :"schema".is_replaying(subscription bigint) returns boolean
language sql stable
as $$
    select exists (
        select from :"schema".replays r
        cross join lateral (
            select c."position" from :"schema".cursors c
            where c.subscription = r.subscription and c.lane = r.lane
            order by c.revision desc limit 1
        ) c
        where r.subscription = $1 and r.ranges[cardinality(r.ranges)] > c."position")
$$;

-- The next definition of a subscription.
create function :"schema".add_definition(
    subscription bigint, declared jsonb, orders text, lanes integer, program text, positions bigint[],
    aheads jsonb
) returns integer
language plpgsql volatile
as $$
declare
    added integer;
begin
    perform :"schema".write_through();
    update :"schema".subscriptions s set definition = s.definition + 1, lanes = add_definition.lanes
    where s.id = add_definition.subscription
    returning s.definition into added;
    insert into :"schema".definitions (subscription, number, selects, orders, lanes, program, positions, aheads)
    values (subscription, added, declared ->> 'selects', add_definition.orders, add_definition.lanes, program,
            positions, aheads);
    return added;
end $$;

-- What a barrier for another order, or other lanes, is called.
create function :"schema".reordering(declared jsonb) returns text
language sql immutable
as $$
    select format(
        'it is to order by %s in %s lanes',
        case declared ->> 'orders'
            when 'none' then 'nothing'
            else regexp_replace(declared ->> 'orders', '^function ', 'a function, version ')
        end,
        declared ->> 'lanes')
$$;

-- Another order, or other lanes: brings the lanes to one position, with nothing in flight, a step for each call. First
-- everybody lets them go; then whoever knows the old order works on up to where the foremost was; then everybody lets
-- them go again. Tells what is to be done: `wait`, `help` to bring them there, or they are `ready`. When nobody knows
-- the old order, a function, they are ready where they stand, unless nothing may come twice: that is `refused`.
create function :"schema".approach(
    subscription :"schema".subscriptions, current :"schema".definitions, declared jsonb, worker text
) returns text
language plpgsql volatile
as $$
declare
    barrier text := :"schema".reordering(declared);
    during interval := interval '10 seconds';
    is_known boolean := current.orders not like 'function %' or current.orders = declared ->> 'orders';
    is_run boolean := :"schema".is_run(subscription.id, worker, 0);
    goes_on boolean := coalesce(subscription.barrier = barrier and subscription.barrier_until >= :"schema".clock(), false);
    stands record := :"schema".stand(subscription.id, subscription.lanes);
begin
    -- A replay comes to its end first, as long as somebody can bring it there.
    if (is_known or is_run) and :"schema".is_replaying(subscription.id) then
        return case when is_run then 'wait' else 'help' end;
    end if;
    -- While it is paused nobody brings them anywhere, and a person may want to move them.
    if subscription.status = 'paused' and (stands.held or not stands.even) then
        perform :"schema".lift_barrier(subscription.id, barrier);
        return 'wait';
    end if;
    if :"schema".set_barrier(
        subscription.id, barrier, case when goes_on then subscription.barrier_at end, during
    ) <> barrier then
        return 'wait';
    end if;
    if stands.even then
        perform :"schema".set_barrier(subscription.id, barrier, null, during);
        return case when stands.held then 'wait' else 'ready' end;
    end if;
    if not goes_on or subscription.barrier_at is null then
        if stands.held then
            return 'wait';
        end if;
        perform :"schema".set_barrier(subscription.id, barrier, stands.highest, during);
    end if;
    if is_known and not is_run then
        return 'help';
    end if;
    if is_run or stands.held then
        return 'wait';
    end if;
    if (declared ->> 'exactly_once')::boolean then
        perform :"schema".lift_barrier(subscription.id, barrier);
        return 'refused';
    end if;
    perform :"schema".set_barrier(subscription.id, barrier, null, during);
    return 'ready';
end $$;

-- The number of an older definition that says the same, if a newer one is run by another worker: its program waits for
-- that to end. One that has begun to go back to an older order goes on with it.
create function :"schema".outdated(subscription :"schema".subscriptions, declared jsonb, worker text) returns integer
language plpgsql stable
as $$
declare
    known integer;
begin
    if subscription.barrier = :"schema".reordering(declared) and subscription.barrier_until >= :"schema".clock() then
        return null;
    end if;
    select max(d.number) into known from :"schema".definitions d
    where d.subscription = outdated.subscription.id and d.number < outdated.subscription.definition
      and d.selects = declared ->> 'selects' and d.orders = declared ->> 'orders'
      and d.lanes = (declared ->> 'lanes')::integer;
    return case when :"schema".is_run(subscription.id, worker, known) then known end;
end $$;

-- What a definition says, as far as it is compared with others.
create function :"schema".described(d :"schema".definitions) returns jsonb
language sql immutable
as $$
    select jsonb_build_object('selects', d.selects, 'orders', d.orders, 'lanes', d.lanes)
$$;

-- Declares one subscription, and tells what is there: whether it is new, under which name it was known, which definition
-- was in force if this is another, from which position on this one is, and what keeps it from being.
create function :"schema".declare_subscription(
    declared jsonb, others text[], program text, worker text, lease interval
) returns jsonb
language plpgsql volatile
as $$
declare
    known record := :"schema".open_subscription(declared, others, worker);
    subscription :"schema".subscriptions := known.opened;
    lanes integer := (declared ->> 'lanes')::integer;
    current :"schema".definitions;
    stands record;
    was jsonb;
    from_position bigint;
    pending text;
    older integer;
begin
    if known.created then
        insert into :"schema".cursors (subscription, lane, revision, "position", ahead)
        select subscription.id, l, 1, (declared ->> 'position')::bigint,
               array(select jsonb_array_elements_text(declared -> 'ahead'))::bigint[]
        from generate_series(0, lanes - 1) l;
        insert into :"schema".definitions (subscription, number, selects, orders, lanes, program, positions, aheads)
        values (subscription.id, 1, declared ->> 'selects', declared ->> 'orders', lanes, program,
                array_fill((declared ->> 'position')::bigint, array[lanes]),
                (select jsonb_agg(declared -> 'ahead') from generate_series(1, lanes)));
    else
        if not subscription.in_code then
            raise exception using errcode = 'MP004', message = format(
                '%s/%s: it was created for consumers, and cannot have handlers: choose another name for one of both, '
                'or delete it', subscription."group", subscription.name);
        end if;
        select * into current from :"schema".definitions d
        where d.subscription = subscription.id and d.number = subscription.definition;
        if (current.selects, current.orders, current.lanes)
            is distinct from (declared ->> 'selects', declared ->> 'orders', lanes)
        then
            was := :"schema".described(current);
            older := :"schema".outdated(subscription, declared, worker);
            if older is null and (current.orders, current.lanes) is distinct from (declared ->> 'orders', lanes) then
                pending := :"schema".approach(subscription, current, declared, worker);
            end if;
            if older is null and current.selects <> declared ->> 'selects' and coalesce(pending, 'help') = 'help' then
                -- What an owner writes until it is fenced off was passed by the one before.
                perform :"schema".fence(subscription.id, current.lanes);
                stands := :"schema".stand(subscription.id, current.lanes);
                subscription.definition := :"schema".add_definition(
                    subscription.id, declared, current.orders, current.lanes, program, stands.positions,
                    stands.aheads);
                from_position := stands.lowest;
                perform :"schema".act(subscription.id);
            end if;
        end if;
    end if;
    if worker is not null then
        perform :"schema".tell(
            subscription.id, worker, coalesce(older, subscription.definition),
            older is null and coalesce(pending, 'help') = 'help', null, lease);
    end if;
    return :"schema".opened(subscription.id, coalesce(older, subscription.definition)) || jsonb_build_object(
        'created', known.created, 'renamed', known.renamed, 'was', was, 'from', from_position, 'pending', pending);
end $$;

-- Creates the subscriptions that are new, numbers the definitions that changed, and tells what is there.
create function :"schema".declare_subscriptions(definitions jsonb, program text, worker text, lease interval)
returns json
language plpgsql volatile
as $$
declare
    given record;
    results json[] := array_fill(null::json, array[jsonb_array_length(definitions)]);
begin
    delete from :"schema".serving v where v.until < :"schema".clock() - interval '1 day';
    -- In one order, so that processes that start together do not wait for each other in a circle; what is renamed first,
    -- for another may have its old name from now on.
    for given in
        select d.value as definition, d.ordinality::integer as ordinal,
               array(select o.value ->> 'name' from jsonb_array_elements(definitions) o
                     where o.value ->> 'group' = d.value ->> 'group') as others
        from jsonb_array_elements(definitions) with ordinality d
        order by d.value ->> 'renamed_from' is null, d.value ->> 'group' collate "C", d.value ->> 'name' collate "C"
    loop
        results[given.ordinal] := :"schema".declare_subscription(
            given.definition, given.others, program, worker, lease)::json;
    end loop;
    return array_to_json(results);
end $$;

-- What a worker does for a subscription; without lanes it has those that it had. Nothing is written, and nothing locked,
-- unless it is news or was long ago.
create function :"schema".tell(
    subscription bigint, worker text, number integer, runs boolean, lanes integer[], lease interval,
    waits boolean default false
) returns void
language sql volatile
as $$
    insert into :"schema".serving as v (subscription, worker, number, runs, lanes, until, waits)
    select $1, $2, $3, $4, coalesce($5, '{}'), :"schema".clock() + $6, $7
    where not exists (
        select from :"schema".serving k
        where k.subscription = $1 and k.worker = $2 and k.until >= :"schema".clock() + $6 * 2 / 3
          and (k.number, k.runs, k.lanes, k.waits) is not distinct from ($3, $4, coalesce($5, k.lanes), $7))
    on conflict (subscription, worker) do update
    set number = $3, runs = $4, lanes = coalesce($5, v.lanes), until = :"schema".clock() + $6, waits = $7
$$;

-- A subscription as a worker of a definition has to know it.
create function :"schema".opened(subscription bigint, number integer) returns jsonb
language sql stable
as $$
    select jsonb_build_object(
        'id', s.id, 'number', d.number, 'newest', s.definition, 'lanes', d.lanes, 'orders', d.orders,
        'status', s.status, 'in_code', s.in_code, 'settings', s.settings,
        'since', :"schema".since_of(s.since, s.since_above), 'acted', s.acted, 'limits', s.limits,
        'rekeys', s.rekeys, 'forced', s.forced,
        'barrier', case when s.barrier_until >= :"schema".clock() and not s.barrier_yields then s.barrier end,
        'barrier_at', case when s.barrier_until >= :"schema".clock() then s.barrier_at end,
        'life', (select l.token from :"schema".server_life l),
        'begun', (select min(p) from :"schema".definitions f, unnest(f.positions) p where f.subscription = s.id and f.number = 1))
    from :"schema".subscriptions s
    join :"schema".definitions d on d.subscription = s.id and d.number = $2
    where s.id = $1
$$;

-- Rows in other lanes, under other keys. What waited behind others and has no key any more can run.
create function :"schema".place_rows(subscription bigint, rows jsonb) returns void
language plpgsql volatile
as $$
begin
    update :"schema".deliveries d
    set lane = r.lane, key = r.key, revision = d.revision + 1,
        state = case when d.state = 'waiting' and r.key is null then 'retrying' else d.state end,
        due = case when d.state = 'waiting' and r.key is null then :"schema".clock() else d.due end
    from jsonb_to_recordset(rows) as r("position" bigint, lane integer, key text)
    where d.subscription = place_rows.subscription and d."position" = r."position";
end $$;

-- The other order, or the other lanes, in force from here on: the lanes are where `approach` brought them. Rows get
-- their new keys and lanes. Where lanes stand apart all begin at the lowest, and what is above that comes again. Tells
-- what was in force and where that ended; null if the lanes are not where they were any more.
create function :"schema".reorder(
    subscription bigint, declared jsonb, rows jsonb, program text, worker text, lease interval
) returns json
language plpgsql volatile
as $$
declare
    opened :"schema".subscriptions;
    current :"schema".definitions;
    stands record;
    goal integer := (declared ->> 'lanes')::integer;
    number integer;
    marked bigint[];
begin
    perform :"schema".require_life((declared ->> 'life')::uuid);
    select * into opened from :"schema".subscriptions s where s.id = reorder.subscription for no key update;
    stands := :"schema".stand(subscription, opened.lanes);
    if opened.barrier is distinct from :"schema".reordering(declared) or opened.barrier_until < :"schema".clock()
        or opened.barrier_at is not null or stands.held
        or not stands.even and (declared ->> 'exactly_once')::boolean
    then
        return null;
    end if;
    select * into current from :"schema".definitions d
    where d.subscription = reorder.subscription and d.number = opened.definition;
    delete from :"schema".deliveries d
    where d.subscription = reorder.subscription and d."position" > stands.lowest and not stands.even;
    if not stands.even then
        perform :"schema".forget_leaps(subscription, stands.lowest, null);
    end if;
    marked := array(
        select d."position" from :"schema".replays r
        join :"schema".deliveries d on d.subscription = r.subscription and d.lane = r.lane
            and :"schema".is_within(d."position", r.ranges)
        where r.subscription = reorder.subscription);
    perform :"schema".place_rows(subscription, rows);
    for l in 0 .. greatest(goal, opened.lanes) - 1 loop
        perform :"schema".put_lane(subscription, l, stands.lowest, '{}', stands.released);
    end loop;
    delete from :"schema".lanes l where l.subscription = reorder.subscription and l.lane >= goal;
    delete from :"schema".replays r where r.subscription = reorder.subscription;
    -- What a replay brought and could not be handled is still to be marked when it is tried again.
    insert into :"schema".replays (subscription, lane, ranges)
    select d.subscription, d.lane, array_agg(d."position" order by d."position", e)
    from :"schema".deliveries d, generate_series(1, 2) e
    where d.subscription = reorder.subscription and d."position" = any (marked)
    group by d.subscription, d.lane;
    number := :"schema".add_definition(
        subscription, declared, declared ->> 'orders', goal, program, array_fill(stands.lowest, array[goal]),
        (select jsonb_agg('[]'::jsonb) from generate_series(1, goal)));
    if worker is not null then
        -- Or an older program would find that nobody runs it.
        perform :"schema".tell(subscription, worker, number, true, null, lease);
    end if;
    perform :"schema".lift_barrier(subscription, opened.barrier);
    return json_build_object('was', :"schema".described(current), 'from', stands.lowest, 'up_to', stands.highest);
end $$;
