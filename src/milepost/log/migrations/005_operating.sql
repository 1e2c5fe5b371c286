-- What people do to subscriptions: pause, move, replay, delete. Their workers look at once.
-- oldest: 1

-- Sets what a person wants of it; tells whether it was otherwise.
create function :"schema".set_status(subscription bigint, status text) returns boolean
language plpgsql volatile
as $$
begin
    update :"schema".subscriptions s set status = set_status.status
    where s.id = set_status.subscription and s.status <> set_status.status;
    if not found then
        return false;
    end if;
    perform :"schema".act(subscription);
    return true;
end $$;

-- What was passed over above a position, and up to another, comes again: it is passed over no longer.
create function :"schema".forget_leaps(subscription bigint, lane integer, above bigint, up_to bigint) returns void
language plpgsql volatile
as $$
begin
    insert into :"schema".leaps (subscription, lane, low, high, at)
    select p.subscription, p.lane, forget_leaps.up_to + 1, p.high, p.at from :"schema".leaps p
    where p.subscription = forget_leaps.subscription and p.lane = forget_leaps.lane
      and p.low <= forget_leaps.up_to and p.high > forget_leaps.up_to;
    delete from :"schema".leaps p
    where p.subscription = forget_leaps.subscription and p.lane = forget_leaps.lane and p.low > above
      and p.low <= coalesce(up_to, 9223372036854775807);
    update :"schema".leaps p set high = above
    where p.subscription = forget_leaps.subscription and p.lane = forget_leaps.lane and p.low <= above
      and p.high > above;
end $$;

-- Puts lanes elsewhere, behind a barrier of whoever asks, when nobody has them; null if it does not stand any more.
-- Each lane comes with its cursor, what of it had been handled before, and what is passed over. Rows above one position
-- and up to another are removed, since those messages come again, or never; tells how many.
create function :"schema".place_lanes(
    subscription bigint, barrier text, lanes jsonb, above bigint, up_to bigint, since timestamptz
) returns bigint
language plpgsql volatile
as $$
declare
    opened :"schema".subscriptions;
    given record;
    removed bigint;
begin
    select * into opened from :"schema".subscriptions s where s.id = place_lanes.subscription for no key update;
    if opened.barrier is distinct from place_lanes.barrier or opened.barrier_until < :"schema".clock()
        or (:"schema".stand(subscription, opened.lanes)).held
    then
        return null;
    end if;
    delete from :"schema".deliveries d
    where d.subscription = place_lanes.subscription and d."position" > above
      and d."position" <= coalesce(up_to, 9223372036854775807);
    get diagnostics removed = row_count;
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
        perform :"schema".forget_leaps(subscription, given.lane, above, up_to);
        insert into :"schema".leaps (subscription, lane, low, high)
        select place_lanes.subscription, given.lane, p.low, p.high
        from jsonb_to_recordset(given.leaps) as p(low bigint, high bigint);
        -- What comes again is handled by the definition in force.
        update :"schema".definitions d set positions[given.lane + 1] = given."position"
        where d.subscription = place_lanes.subscription and d.lanes = opened.lanes
          and d.positions[given.lane + 1] > given."position";
    end loop;
    update :"schema".subscriptions s
    set since = place_lanes.since, streak = 0, stalled = null
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
    delete from :"schema".leaps p where p.subscription = delete_subscription.subscription;
    delete from :"schema".reports r where r.subscription = delete_subscription.subscription;
    delete from :"schema".serving v where v.subscription = delete_subscription.subscription;
    delete from :"schema".subscriptions s where s.id = delete_subscription.subscription;
    perform pg_notify(:'schema', 'act');
    return true;
end $$;
