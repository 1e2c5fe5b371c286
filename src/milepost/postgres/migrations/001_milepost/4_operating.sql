-- What people do to subscriptions: pause, move, replay, delete. Their workers look at once.

-- Sets what a person wants of it; tells whether it was otherwise. A pause does not force what was forced before it.
create function :"schema".set_status(subscription bigint, status text) returns boolean
language plpgsql volatile
as $$
begin
    perform :"schema".write_through();
    update :"schema".subscriptions s
    set status = set_status.status, forced = case when s.barrier_until >= :"schema".clock() then s.forced else 0 end
    where s.id = set_status.subscription and s.status <> set_status.status;
    if not found then
        return false;
    end if;
    perform :"schema".act(subscription);
    return true;
end $$;

-- Whoever has something out gives it back at once, while nothing may run: nobody waits for it any more. What was pulled
-- is nobody's from here on.
create function :"schema".take_back(subscription bigint) returns void
language plpgsql volatile
as $$
declare
    now timestamptz := :"schema".clock();
begin
    perform :"schema".act(subscription);
    update :"schema".subscriptions s set forced = s.acted where s.id = take_back.subscription;
    update :"schema".deliveries d
    set state = case when d.attempts > 0 then 'retrying' else 'waiting' end, due = case when d.attempts > 0 then now end,
        since = now, claim = null, expires = null, revision = d.revision + 1
    where d.subscription = take_back.subscription and d.claim is not null;
end $$;

-- What was passed over above a position, and up to another, comes again: it is passed over no longer, whatever lanes there
-- were.
create function :"schema".forget_leaps(subscription bigint, above bigint, up_to bigint) returns void
language plpgsql volatile
as $$
begin
    insert into :"schema".leaps (subscription, number, lane, low, high, at)
    select p.subscription, p.number, p.lane, forget_leaps.up_to + 1, p.high, p.at from :"schema".leaps p
    where p.subscription = forget_leaps.subscription
      and p.low <= forget_leaps.up_to and p.high > forget_leaps.up_to;
    delete from :"schema".leaps p
    where p.subscription = forget_leaps.subscription and p.low > above
      and p.low <= coalesce(up_to, 9223372036854775807);
    update :"schema".leaps p set high = above
    where p.subscription = forget_leaps.subscription and p.low <= above and p.high > above;
end $$;

-- All that a cursor has passed.
create function :"schema".passed("position" bigint, ahead jsonb) returns int8multirange
language sql immutable
as $$
    select int8multirange(int8range(0, $1, '[]')) + coalesce((
        select range_agg(int8range(($2 ->> i)::bigint, ($2 ->> i + 1)::bigint, '[]'))
        from generate_series(0, jsonb_array_length($2) - 1, 2) i), '{}')
$$;

-- What a lane that is put somewhere has not passed comes again, and goes by the definition in force then. It was passed
-- by no other, as far as they order like this one.
create function :"schema".comes_again(
    subscription :"schema".subscriptions, lane integer, "position" bigint, ahead bigint[]
) returns void
language plpgsql volatile
as $$
declare
    known :"schema".definitions;
    others int8range[];
begin
    for known in
        select d.* from :"schema".definitions d
        join :"schema".definitions c on c.subscription = d.subscription and c.number = subscription.definition
        where d.subscription = subscription.id and d.orders = c.orders and d.lanes = c.lanes
          and not :"schema".passed(d.positions[lane + 1], d.aheads -> lane)
              <@ :"schema".passed(comes_again."position", to_jsonb(comes_again.ahead))
        order by d.number
    loop
        others := array(
            select r from unnest(
                :"schema".passed(known.positions[lane + 1], known.aheads -> lane)
                * :"schema".passed(comes_again."position", to_jsonb(comes_again.ahead))) r);
        update :"schema".definitions d
        set positions[lane + 1] = upper(others[1]) - 1,
            aheads = jsonb_set(d.aheads, array[lane::text], coalesce(
                (select jsonb_agg(e.at order by o.ordinality, e.at)
                 from unnest(others[2:]) with ordinality o(r),
                      unnest(array[lower(o.r), upper(o.r) - 1]) e(at)), '[]'))
        where d.subscription = known.subscription and d.number = known.number;
    end loop;
end $$;

-- Puts lanes elsewhere, behind a barrier of whoever asks, when nobody has them; null if it does not stand any more, or if
-- they are not where they were when it was reckoned: `stood` has that, as `stand` tells it.
-- Each lane comes with its cursor, what of it comes again, and what is passed over; and with them what had been handled
-- before by each definition. Rows above one position
-- and up to another are removed, since those messages come again, or never; tells how many.
create function :"schema".place_lanes(
    subscription bigint, life uuid, barrier text, stood jsonb, lanes jsonb, memories jsonb, above bigint, up_to bigint,
    followers bigint[], since timestamptz, since_above bigint
) returns bigint
language plpgsql volatile
as $$
declare
    opened :"schema".subscriptions;
    stands record;
    given record;
    removed bigint;
begin
    perform :"schema".require_life(life), :"schema".write_through();
    select * into opened from :"schema".subscriptions s where s.id = place_lanes.subscription for no key update;
    if opened.barrier is distinct from place_lanes.barrier or opened.barrier_until < :"schema".clock()
        or (:"schema".stand(subscription, opened.lanes)).held
    then
        return null;
    end if;
    -- Who is taken for dead may write all the same, until it is fenced off.
    perform :"schema".fence(subscription, opened.lanes);
    stands := :"schema".stand(subscription, opened.lanes);
    if jsonb_build_array(to_jsonb(stands.positions), stands.aheads) <> stood then
        return null;
    end if;
    delete from :"schema".deliveries d
    where d.subscription = place_lanes.subscription
      and (d."position" > above and d."position" <= coalesce(up_to, 9223372036854775807)
           or d."position" = any (followers));
    get diagnostics removed = row_count;
    perform :"schema".forget_leaps(subscription, above, up_to);
    for given in
        select * from jsonb_to_recordset(lanes)
            as l(lane integer, "position" bigint, ahead bigint[], replay bigint[], leaps jsonb)
    loop
        perform :"schema".put_lane(subscription, given.lane, given."position", given.ahead, true);
        delete from :"schema".replays r where r.subscription = place_lanes.subscription and r.lane = given.lane;
        if given.replay <> '{}' then
            insert into :"schema".replays (subscription, lane, ranges)
            values (subscription, given.lane, given.replay);
        end if;
        insert into :"schema".leaps (subscription, number, lane, low, high)
        select place_lanes.subscription, opened.definition, given.lane, p.low, p.high
        from jsonb_to_recordset(given.leaps) as p(low bigint, high bigint);
        perform :"schema".comes_again(opened, given.lane, given."position", given.ahead);
    end loop;
    delete from :"schema".memories m where m.subscription = place_lanes.subscription;
    insert into :"schema".memories (subscription, number, lane, ranges)
    select place_lanes.subscription, m.number, m.lane, m.ranges
    from jsonb_to_recordset(memories) as m(number integer, lane integer, ranges bigint[]);
    update :"schema".subscriptions s
    set since = place_lanes.since, since_above = place_lanes.since_above, streak = 0, stalled = null
    where s.id = place_lanes.subscription;
    perform :"schema".lift_barrier(subscription, barrier);
    return removed;
end $$;

-- Forgets a subscription, behind a barrier, when nobody has its lanes; false if that does not stand any more.
create function :"schema".delete_subscription(subscription bigint, barrier text) returns boolean
language plpgsql volatile
as $$
declare
    opened :"schema".subscriptions;
begin
    select * into opened from :"schema".subscriptions s where s.id = delete_subscription.subscription for update;
    if opened.barrier is distinct from delete_subscription.barrier or opened.barrier_until < :"schema".clock()
        or (:"schema".stand(subscription, opened.lanes)).held
    then
        return false;
    end if;
    delete from :"schema".deliveries d where d.subscription = delete_subscription.subscription;
    delete from :"schema".counts c where c.subscription = delete_subscription.subscription;
    delete from :"schema".cursors c where c.subscription = delete_subscription.subscription;
    delete from :"schema".lanes l where l.subscription = delete_subscription.subscription;
    delete from :"schema".replays r where r.subscription = delete_subscription.subscription;
    delete from :"schema".memories m where m.subscription = delete_subscription.subscription;
    delete from :"schema".leaps p where p.subscription = delete_subscription.subscription;
    delete from :"schema".reports r where r.subscription = delete_subscription.subscription;
    delete from :"schema".serving v where v.subscription = delete_subscription.subscription;
    delete from :"schema".subscriptions s where s.id = delete_subscription.subscription;
    perform pg_notify(:'schema', 'act');
    return true;
end $$;

-- What of ranges (first, last, first, last, …) is not beyond a position.
create function :"schema".ranges_up_to(ranges bigint[], "position" bigint) returns bigint[]
language sql immutable
as $$
    select coalesce(array_agg(least(e.value, $2) order by e.place), '{}')
    from unnest(ranges) with ordinality as e(value, place)
    where ranges[(e.place - 1) / 2 * 2 + 1] <= $2
$$;

-- The subscriptions that know more of the log than a position: by how many positions, and how many deliveries beyond it
-- they have.
create function :"schema".beyond(survived bigint)
returns table (subscription bigint, "group" text, name text, positions bigint, deliveries bigint)
language sql stable
as $$
    select s.id, s."group", s.name, greatest(c.highest - survived, 0), d.deliveries
    from :"schema".subscriptions s
    cross join lateral (
        select max(greatest(l."position", l.ahead[cardinality(l.ahead)])) as highest
        from generate_series(0, s.lanes - 1) n
        cross join lateral (
            select k."position", k.ahead from :"schema".cursors k
            where k.subscription = s.id and k.lane = n
            order by k.revision desc limit 1
        ) l
    ) c
    cross join lateral (
        select count(*) as deliveries from :"schema".deliveries r
        where r.subscription = s.id and r."position" > survived
    ) d
    where c.highest > survived or d.deliveries > 0
    order by 2, 3
$$;

-- Takes all progress back to what survived of a log that is kept in another database: messages beyond that may be others
-- now. Whoever has a lane is fenced off. `id` is that of the message at the position; none: nothing survived.
create function :"schema".rewind(survived bigint, log uuid, id uuid, "time" timestamptz) returns void
language plpgsql volatile
as $$
declare
    opened :"schema".subscriptions;
    last :"schema".cursors;
begin
    perform :"schema".write_through();
    for opened in select * from :"schema".subscriptions s order by s.id for no key update loop
        for wanted in 0 .. opened.lanes - 1 loop
            select * into last from :"schema".cursors c
            where c.subscription = opened.id and c.lane = wanted
            order by c.revision desc limit 1;
            continue when greatest(last."position", last.ahead[cardinality(last.ahead)]) <= survived;
            perform :"schema".put_lane(
                opened.id, wanted, least(last."position", survived), :"schema".ranges_up_to(last.ahead, survived), true);
        end loop;
    end loop;
    delete from :"schema".deliveries d where d."position" > survived;
    update :"schema".replays r set ranges = :"schema".ranges_up_to(r.ranges, survived);
    delete from :"schema".replays r where r.ranges = '{}';
    update :"schema".memories m set ranges = :"schema".ranges_up_to(m.ranges, survived);
    delete from :"schema".leaps p where p.low > survived;
    update :"schema".leaps p set high = survived where p.high > survived;
    update :"schema".definitions d
    set positions = array(
            select least(p.value, survived) from unnest(d.positions) with ordinality as p(value, lane) order by p.lane),
        aheads = (
            select coalesce(jsonb_agg(
                to_jsonb(:"schema".ranges_up_to(
                    array(select jsonb_array_elements_text(a.value))::bigint[], survived)) order by a.lane), '[]')
            from jsonb_array_elements(d.aheads) with ordinality as a(value, lane));
    update :"schema".subscriptions s set since_above = survived where s.since_above > survived;
    delete from :"schema".followed f where f.horizon > survived;
    insert into :"schema".followed (horizon, log, "position", id, "time")
    values (survived, rewind.log, case when rewind.id is not null then survived end, rewind.id, rewind."time")
    on conflict (horizon) do update
    set "position" = excluded."position", id = excluded.id, "time" = excluded."time";
    -- A worker that has not noticed anything remembers more of the log than this, and would write by that.
    update :"schema".server_life l set token = gen_random_uuid();
    perform pg_notify(:'schema', 'act');
end $$;
