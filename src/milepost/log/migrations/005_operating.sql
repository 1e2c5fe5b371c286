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
            as l(lane integer, "position" bigint, ahead bigint[], replay bigint[], leap bigint[])
    loop
        perform :"schema".put_lane(subscription, given.lane, given."position", given.ahead, true);
        delete from :"schema".replays r where r.subscription = place_lanes.subscription and r.lane = given.lane;
        if given.replay <> '{}' then
            insert into :"schema".replays (subscription, lane, ranges)
            values (subscription, given.lane, given.replay);
        end if;
        delete from :"schema".leaps p
        where p.subscription = place_lanes.subscription and p.lane = given.lane and p.low > given."position";
        update :"schema".leaps p set high = given."position"
        where p.subscription = place_lanes.subscription and p.lane = given.lane and p.high > given."position";
        if given.leap <> '{}' then
            insert into :"schema".leaps (subscription, lane, low, high)
            values (subscription, given.lane, given.leap[1], given.leap[2]);
        end if;
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
    delete from :"schema".subscriptions s where s.id = delete_subscription.subscription;
    perform pg_notify(:'schema', 'act');
    return true;
end $$;
