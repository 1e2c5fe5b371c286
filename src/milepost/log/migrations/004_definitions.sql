-- Definitions: what subscriptions select and how they order, and how that changes while programs run.
-- oldest: 1

-- The subscription of a definition, locked: found by its name, by its former name, or made.
create function :"schema".open_subscription(
    declared jsonb, out opened :"schema".subscriptions, out created boolean
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
            update :"schema".subscriptions s set name = declared ->> 'name'
            where s."group" = declared ->> 'group' and s.name = declared ->> 'renamed_from'
            returning s.* into opened;
            exit when found;
            insert into :"schema".subscriptions ("group", name, lanes, since)
            values (declared ->> 'group', declared ->> 'name', (declared ->> 'lanes')::integer,
                    (declared ->> 'since')::timestamptz)
            returning subscriptions.* into opened;
            created := true;
            exit;
        exception when unique_violation then
            -- Another process was first: it is there now.
            null;
        end;
    end loop;
end $$;

-- Whether a worker has a lane, as far as is known: it was taken, not released, and its owner is not known to be dead.
create function :"schema".is_held(subscription bigint, lane integer, epoch bigint, released boolean) returns boolean
language sql stable
as $$
    select epoch is not null and not released and not exists (
        select from :"schema".lanes o
        where o.subscription = $1 and o.lane = $2 and not exists (
            select from :"schema".workers w where w.id = o.owner and w.beat + w.lease >= :"schema".clock()))
$$;

-- Where the lanes of a subscription stand together.
create function :"schema".stand(
    subscription bigint, lanes integer,
    out positions bigint[], out lowest bigint, out highest bigint,
    out even boolean,  -- all at one position, with nothing ahead
    out held boolean,  -- by a live worker, at least one of them
    out released boolean  -- all in good order
)
language plpgsql stable
as $$
begin
    select array_agg(c."position" order by l), min(c."position"),
           max(greatest(c."position", c.ahead[cardinality(c.ahead)])),
           min(c."position") = max(c."position") and bool_and(c.ahead = '{}'),
           bool_or(:"schema".is_held(stand.subscription, l, c.epoch, c.released)),
           bool_and(c.epoch is null or c.released)
    into positions, lowest, highest, even, held, released
    from generate_series(0, lanes - 1) l
    cross join lateral (
        select c."position", c.ahead, c.epoch, c.released from :"schema".cursors c
        where c.subscription = stand.subscription and c.lane = l
        order by c.revision desc limit 1
    ) c;
end $$;

-- A new revision of every lane, which fences whoever has it, and changes nothing else.
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
                insert into :"schema".cursors (subscription, lane, revision, epoch, released, "position", ahead)
                values (subscription, wanted, last.revision + 1, last.epoch, last.released, last."position",
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
        barrier_at = set_barrier."position"
    where s.id = set_barrier.subscription;
    if found.barrier is null or found.barrier_at is distinct from "position" then
        perform :"schema".act(subscription);
    end if;
    return barrier;
end $$;

-- Lets all go on.
create function :"schema".lift_barrier(subscription bigint, barrier text) returns void
language plpgsql volatile
as $$
begin
    update :"schema".subscriptions s set barrier = null, barrier_until = null, barrier_at = null
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
    subscription bigint, declared jsonb, orders text, lanes integer, program text, positions bigint[]
) returns integer
language plpgsql volatile
as $$
declare
    added integer;
begin
    update :"schema".subscriptions s set definition = s.definition + 1, lanes = add_definition.lanes
    where s.id = add_definition.subscription
    returning s.definition into added;
    insert into :"schema".definitions (subscription, number, selects, orders, lanes, program, positions)
    values (subscription, added, declared ->> 'selects', add_definition.orders, add_definition.lanes, program,
            positions);
    return added;
end $$;

-- What a barrier for another order, or other lanes, is called.
create function :"schema".reordering(declared jsonb) returns text
language sql immutable
as $$
    select format('it is to order by %s in %s lanes', declared ->> 'orders', declared ->> 'lanes')
$$;

-- Another order, or other lanes: brings the lanes to one position, with nothing in flight, a step for each call. First
-- everybody lets them go; then whoever knows the old order works on up to where the foremost was; then everybody lets
-- them go again. Tells what is to be done: `wait`, `help` to bring them there, or they are `ready`. When nobody knows
-- the old order, a function, they are ready where they stand.
create function :"schema".approach(subscription :"schema".subscriptions, current :"schema".definitions, declared jsonb)
returns text
language plpgsql volatile
as $$
declare
    barrier text := :"schema".reordering(declared);
    known boolean := current.orders not like 'function %' or current.orders = declared ->> 'orders';
    during interval := interval '10 seconds';
    stands record;
    runs boolean := exists (
        select from :"schema".workers w
        where subscription.id = any (w.wants) and w.beat + w.lease >= :"schema".clock());
    helps boolean := known and (not runs or (declared ->> 'helps')::boolean);
    goes_on boolean := subscription.barrier = barrier and subscription.barrier_until >= :"schema".clock();
begin
    -- A replay comes to its end first, as long as somebody can bring it there.
    if (helps or runs) and :"schema".is_replaying(subscription.id) then
        return case when helps then 'help' else 'wait' end;
    end if;
    if :"schema".set_barrier(
        subscription.id, barrier, case when goes_on then subscription.barrier_at end, during
    ) <> barrier then
        return 'wait';
    end if;
    stands := :"schema".stand(subscription.id, subscription.lanes);
    if stands.even then
        perform :"schema".set_barrier(subscription.id, barrier, null, during);
        return case when stands.held then 'wait' else 'ready' end;
    end if;
    if not coalesce(goes_on, false) or subscription.barrier_at is null then
        if stands.held then
            return 'wait';
        end if;
        perform :"schema".set_barrier(subscription.id, barrier, stands.highest, during);
    end if;
    if helps then
        return 'help';
    end if;
    if runs or stands.held or subscription.status = 'paused' then
        return 'wait';
    end if;
    perform :"schema".set_barrier(subscription.id, barrier, null, during);
    return 'ready';
end $$;

-- Creates the subscriptions that are new, numbers the definitions that changed, and tells what is there.
create function :"schema".declare_subscriptions(definitions jsonb, program text) returns json
language plpgsql volatile
as $$
declare
    given record;
    found_or_made record;
    subscription :"schema".subscriptions;
    created boolean;
    current :"schema".definitions;
    stands record;
    earlier integer;
    pending text;
    reorders boolean;
    changed text[];
    results json[] := array_fill(null::json, array[jsonb_array_length(definitions)]);
begin
    -- In one order, so that processes that start together do not wait for each other in a circle.
    for given in
        select d.value as definition, d.ordinality::integer as ordinal
        from jsonb_array_elements(definitions) with ordinality d
        order by d.value ->> 'group' collate "C", d.value ->> 'name' collate "C"
    loop
        found_or_made := :"schema".open_subscription(given.definition);
        subscription := found_or_made.opened;
        created := found_or_made.created;
        changed := '{}';
        pending := null;
        if created then
            insert into :"schema".cursors (subscription, lane, revision, "position", ahead)
            select subscription.id, l, 1, (given.definition ->> 'position')::bigint,
                   array(select jsonb_array_elements_text(given.definition -> 'ahead'))::bigint[]
            from generate_series(0, subscription.lanes - 1) l;
            insert into :"schema".definitions (subscription, number, selects, orders, lanes, program, positions)
            values (subscription.id, 1, given.definition ->> 'selects', given.definition ->> 'orders',
                    subscription.lanes, program,
                    array_fill((given.definition ->> 'position')::bigint, array[subscription.lanes]));
        else
            if not subscription.in_code then
                raise exception using errcode = 'MP004', message = format(
                    '%s/%s: it was created for consumers, and cannot have handlers: choose another name for one of both, '
                    'or delete it', subscription."group", subscription.name);
            end if;
            select * into current from :"schema".definitions d
            where d.subscription = subscription.id and d.number = subscription.definition;
            reorders := current.orders <> given.definition ->> 'orders'
                or subscription.lanes <> (given.definition ->> 'lanes')::integer;
            earlier := null;
            if (reorders or current.selects <> given.definition ->> 'selects')
                and subscription.barrier is distinct from :"schema".reordering(given.definition)
            then
                -- A program that is older than one that runs waits for it to end.
                select max(d.number) into earlier from :"schema".definitions d
                where d.subscription = subscription.id and d.selects = given.definition ->> 'selects'
                  and d.orders = given.definition ->> 'orders'
                  and d.lanes = (given.definition ->> 'lanes')::integer
                  and exists (
                      select from :"schema".workers w
                      where subscription.id = any (w.wants) and w.beat + w.lease >= :"schema".clock());
            end if;
            if earlier is not null then
                subscription.definition := earlier;
                changed := array['a newer program runs it: this one waits until that has ended'];
            else
                if reorders then
                    pending := :"schema".approach(subscription, current, given.definition);
                    changed := changed || case
                        when current.orders = given.definition ->> 'orders' then
                            format('it has %s lanes and is to have %s', subscription.lanes,
                                   given.definition ->> 'lanes')
                        else format('it orders by %s and is to order by %s', current.orders,
                                    given.definition ->> 'orders')
                    end;
                end if;
                if current.selects <> given.definition ->> 'selects' and (pending is null or pending = 'help') then
                    stands := :"schema".stand(subscription.id, subscription.lanes);
                    perform :"schema".fence(subscription.id, subscription.lanes);
                    subscription.definition := :"schema".add_definition(
                        subscription.id, given.definition, current.orders, subscription.lanes, program,
                        stands.positions);
                    changed := changed || format(
                        'it selected %s and now selects %s, from position %s on', current.selects,
                        given.definition ->> 'selects', to_char(stands.lowest, 'FM999,999,999,999,999,999'));
                end if;
            end if;
        end if;
        results[given.ordinal] := (
            :"schema".opened(subscription.id, subscription.definition) || jsonb_build_object(
                'created', created, 'pending', pending, 'changed', nullif(array_to_string(changed, '; '), ''))
        )::json;
    end loop;
    return array_to_json(results);
end $$;

-- A subscription as a worker of a definition has to know it.
create function :"schema".opened(subscription bigint, number integer) returns jsonb
language sql stable
as $$
    select jsonb_build_object(
        'id', s.id, 'number', d.number, 'newest', s.definition, 'lanes', d.lanes, 'orders', d.orders,
        'status', s.status, 'in_code', s.in_code, 'settings', s.settings, 'since', s.since, 'acted', s.acted, 'limits', s.limits,
        'barrier', case when s.barrier_until >= :"schema".clock() then s.barrier end,
        'barrier_at', case when s.barrier_until >= :"schema".clock() then s.barrier_at end)
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
-- their new keys and lanes. Where lanes stand apart all begin at the lowest, and what is above that comes again.
create function :"schema".reorder(subscription bigint, declared jsonb, rows jsonb, program text) returns text
language plpgsql volatile
as $$
declare
    opened :"schema".subscriptions;
    current :"schema".definitions;
    stands record;
    goal integer := (declared ->> 'lanes')::integer;
begin
    select * into opened from :"schema".subscriptions s where s.id = reorder.subscription for no key update;
    stands := :"schema".stand(subscription, opened.lanes);
    if opened.barrier is distinct from :"schema".reordering(declared) or opened.barrier_until < :"schema".clock()
        or opened.barrier_at is not null or stands.held
    then
        return null;
    end if;
    select * into current from :"schema".definitions d
    where d.subscription = reorder.subscription and d.number = opened.definition;
    if not stands.even and (declared ->> 'exactly_once')::boolean then
        raise exception using errcode = 'MP004', message = format(
            '%s/%s: it ordered by %s and is to order by %s, while its lanes stand at different positions, nobody is '
            'left who knows the old order, and its handlers write exactly once: messages would come twice. Move it, '
            'or let the program with the old order handle everything first', opened."group", opened.name,
            current.orders, declared ->> 'orders');
    end if;
    delete from :"schema".deliveries d
    where d.subscription = reorder.subscription and d."position" > stands.lowest and not stands.even;
    perform :"schema".place_rows(subscription, rows);
    for l in 0 .. greatest(goal, opened.lanes) - 1 loop
        perform :"schema".put_lane(subscription, l, stands.lowest, '{}', stands.released);
    end loop;
    delete from :"schema".lanes l where l.subscription = reorder.subscription and l.lane >= goal;
    delete from :"schema".replays r where r.subscription = reorder.subscription;
    perform :"schema".add_definition(
        subscription, declared, declared ->> 'orders', goal, program, stands.positions);
    perform :"schema".lift_barrier(subscription, opened.barrier);
    return format('it ordered by %s in %s lanes and now orders by %s in %s, from position %s on', current.orders,
                  opened.lanes, declared ->> 'orders', goal, to_char(stands.lowest, 'FM999,999,999,999,999,999'))
        || case
               when stands.even then ''
               else format('; up to %s positions come again, since its lanes stood apart',
                           to_char(stands.highest - stands.lowest, 'FM999,999,999,999'))
           end;
end $$;
