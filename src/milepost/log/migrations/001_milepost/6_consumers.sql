-- Subscriptions that are created for consumers: their settings are here, not in a program.

-- What each process with consumers of such a subscription tells: which of the changes that people made it follows, and
-- what its consumers do. Who has not told anything for a while is gone.
create unlogged table :"schema".attending (
    subscription bigint not null,
    worker text collate "C" not null,
    until timestamptz not null,
    at timestamptz not null,
    acted bigint not null,  -- the subscription's, as of the change that it follows
    owns boolean not null,  -- or it stands by
    consumers integer not null,
    statistics jsonb,  -- of an owner
    node text,  -- which of the processes with consumers of a subscription others can be sent to
    primary key (subscription, worker)
) with (fillfactor = 50);

-- Whoever has the lane of a created one from now on goes by its newest definition for all that the cursor has not passed.
-- What it has was passed by those before, whatever an owner knew that vanished before it wrote.
create function :"schema".goes_by(subscription bigint, "position" bigint, ahead bigint[]) returns void
language plpgsql volatile
as $$
declare
    created :"schema".subscriptions;
begin
    select * into created from :"schema".subscriptions s where s.id = goes_by.subscription and not s.in_code;
    if found then
        update :"schema".definitions d
        set positions = array[goes_by."position"], aheads = jsonb_build_array(goes_by.ahead), adopted = true
        where d.subscription = goes_by.subscription and not d.adopted;
        perform :"schema".comes_again(created, 0, "position", ahead);
    end if;
end $$;

-- Creates one, or changes it if that is wanted; tells what came of it: `created`, `updated`, `exists`, `in_code`;
-- `reorders`, when it orders otherwise and nothing was done, for that takes a barrier; or `tracks`, when it tracks
-- otherwise, which cannot be changed.
create function :"schema".create_subscription(declared jsonb, settings jsonb, if_exists text, program text) returns text
language plpgsql volatile
as $$
declare
    found_or_made record;
    made :"schema".subscriptions;
    current :"schema".definitions;
    stands record;
begin
    found_or_made := :"schema".open_subscription(declared);
    made := found_or_made.opened;
    if found_or_made.created then
        insert into :"schema".cursors (subscription, lane, revision, "position", ahead)
        values (made.id, 0, 1, (declared ->> 'position')::bigint,
                array(select jsonb_array_elements_text(declared -> 'ahead'))::bigint[]);
        insert into :"schema".definitions (subscription, number, selects, orders, lanes, program, positions, aheads)
        values (made.id, 1, declared ->> 'selects', declared ->> 'orders', 1, program,
                array[(declared ->> 'position')::bigint], jsonb_build_array(declared -> 'ahead'));
        update :"schema".subscriptions s set in_code = false, settings = create_subscription.settings
        where s.id = made.id;
        return 'created';
    end if;
    if made.in_code then
        return 'in_code';
    end if;
    if if_exists <> 'update' then
        return 'exists';
    end if;
    if made.settings ->> 'tracking' <> create_subscription.settings ->> 'tracking' then
        return 'tracks';
    end if;
    select * into current from :"schema".definitions d
    where d.subscription = made.id and d.number = made.definition;
    if current.orders <> declared ->> 'orders' then
        return 'reorders';
    end if;
    -- Where it began stays what it was.
    settings := settings || jsonb_build_object('start', made.settings -> 'start');
    if current.selects <> declared ->> 'selects' then
        stands := :"schema".stand(made.id, 1);
        made.definition := :"schema".add_definition(
            made.id, declared, current.orders, 1, program, stands.positions, stands.aheads);
        -- Who pulls goes by it at once; an owner when it has heard of it.
        update :"schema".definitions d set adopted = settings ->> 'tracking' = 'all'
        where d.subscription = made.id and d.number = made.definition;
    end if;
    if made.settings <> create_subscription.settings or current.selects <> declared ->> 'selects' then
        update :"schema".subscriptions s set settings = create_subscription.settings where s.id = made.id;
        perform :"schema".act(made.id);
    end if;
    return 'updated';
end $$;

-- Another order, behind a barrier that its own name says, when nobody has the lane; see reorder.
create function :"schema".reorder_created(
    subscription bigint, barrier text, declared jsonb, settings jsonb, rows jsonb, program text
) returns boolean
language plpgsql volatile
as $$
declare
    opened :"schema".subscriptions;
    stands record;
begin
    perform :"schema".require_life((declared ->> 'life')::uuid);
    select * into opened from :"schema".subscriptions s where s.id = reorder_created.subscription for no key update;
    stands := :"schema".stand(subscription, 1);
    if opened.barrier is distinct from reorder_created.barrier or opened.barrier_until < :"schema".clock() or stands.held
    then
        return false;
    end if;
    perform :"schema".place_rows(subscription, rows);
    perform :"schema".goes_by(
        subscription, stands.lowest, array(select jsonb_array_elements_text(stands.aheads -> 0))::bigint[]);
    perform :"schema".add_definition(
        subscription, declared, declared ->> 'orders', 1, program, stands.positions, stands.aheads);
    update :"schema".subscriptions s
    set settings = reorder_created.settings || jsonb_build_object('start', s.settings -> 'start')
    where s.id = reorder_created.subscription;
    perform :"schema".lift_barrier(subscription, barrier);
    return true;
end $$;
