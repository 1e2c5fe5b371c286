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
-- `reorders`, when it orders otherwise and nobody has its lane, and nothing was done, for that takes a barrier: an owner
-- does it by itself; or `tracks`, when it tracks otherwise, which cannot be changed.
create function :"schema".create_subscription(declared jsonb, settings jsonb, if_exists text, program text) returns text
language plpgsql volatile
as $$
declare
    found_or_made record;
    made :"schema".subscriptions;
    current :"schema".definitions;
    stands record;
    is_pulled boolean := settings ->> 'tracking' = 'all';
    selects_otherwise boolean;
    orders_otherwise boolean;
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
    selects_otherwise := current.selects <> declared ->> 'selects';
    orders_otherwise := current.orders <> declared ->> 'orders';
    stands := :"schema".stand(made.id, 1);
    if orders_otherwise and (is_pulled or not stands.held) then
        return 'reorders';
    end if;
    -- Where it began stays what it was.
    settings := settings || jsonb_build_object('start', made.settings -> 'start');
    if selects_otherwise or orders_otherwise then
        made.definition := :"schema".add_definition(
            made.id, declared, declared ->> 'orders', 1, program, stands.positions, stands.aheads);
        -- Who pulls goes by it at once; an owner when it has heard of it.
        update :"schema".definitions d set adopted = is_pulled
        where d.subscription = made.id and d.number = made.definition;
    end if;
    if made.settings <> create_subscription.settings or selects_otherwise then
        update :"schema".subscriptions s
        set settings = create_subscription.settings, rekeys = s.rekeys or orders_otherwise
        where s.id = made.id;
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
    set settings = reorder_created.settings || jsonb_build_object('start', s.settings -> 'start'), rekeys = false
    where s.id = reorder_created.subscription;
    perform :"schema".lift_barrier(subscription, barrier);
    return true;
end $$;

-- The owner of the lane of a created one gives all rows their keys by the order in force, whatever is out. `known` has
-- the positions and revisions of those that it knows, null for any revision: it is told what they say now, as far as the
-- revision was that. Null if it is the owner no longer.
create function :"schema".rekey(
    subscription bigint, life uuid, epoch bigint, revision bigint, number integer, rows jsonb, known jsonb
) returns json
language plpgsql volatile
as $$
declare
    last :"schema".cursors;
    same bigint[];
begin
    perform :"schema".require_life(life), :"schema".write_through();
    -- Nobody takes the lane meanwhile.
    perform from :"schema".subscriptions s where s.id = rekey.subscription for no key update;
    select * into last from :"schema".cursors c
    where c.subscription = rekey.subscription and c.lane = 0
    order by c.revision desc limit 1;
    if (last.epoch, last.revision) is distinct from (rekey.epoch, rekey.revision) then
        return null;
    end if;
    same := array(
        select d."position" from jsonb_to_recordset(known) as k("position" bigint, revision bigint)
        join :"schema".deliveries d on d.subscription = rekey.subscription and d."position" = k."position"
        where k.revision is null or d.revision = k.revision);
    perform :"schema".place_rows(subscription, rows);
    update :"schema".definitions d
    set positions = array[last."position"], aheads = jsonb_build_array(last.ahead), since = :"schema".clock(),
        adopted = true
    where d.subscription = rekey.subscription and d.number <= rekey.number and not d.adopted;
    update :"schema".subscriptions s set rekeys = false
    where s.id = rekey.subscription and s.definition = rekey.number;
    return coalesce((
        select json_agg(:"schema".loaded(d) -> 'row') from :"schema".deliveries d
        where d.subscription = rekey.subscription and d."position" = any (same)), '[]');
end $$;
