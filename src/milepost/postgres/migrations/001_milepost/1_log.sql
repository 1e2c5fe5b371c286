-- The log: messages in streams, in an order that is safe to follow.
-- oldest: 1

-- The one clock that decides anything. A test moves it by replacing this function.
create function :"schema".clock() returns timestamptz
language sql volatile parallel safe
as $$ select clock_timestamp() $$;

-- The first two bytes of the SHA-256 of a name, modulo 1,024. Stored lanes rely on it: it never changes.
create function :"schema".bucket(name text) returns smallint
language plpgsql immutable strict parallel safe
as $$
declare
    digest bytea := sha256(convert_to(name, 'UTF8'));
begin
    return ((get_byte(digest, 0) << 8) | get_byte(digest, 1)) & 1023;
end $$;

-- What the index over categories holds: the first four bytes of the SHA-256 of a category's name.
-- A hash, so that a new category locks nothing; whoever reads by it checks the name itself too.
create function :"schema".category_hash(category text) returns integer
language plpgsql immutable strict parallel safe
as $$
declare
    digest bytea := sha256(convert_to(category, 'UTF8'));
begin
    return (get_byte(digest, 0) << 24) | (get_byte(digest, 1) << 16)
         | (get_byte(digest, 2) << 8) | get_byte(digest, 3);
end $$;

-- Flat, typed values that filters look at: integers of 64 bits, strings, booleans.
create function :"schema".are_properties(properties jsonb) returns boolean
language sql immutable parallel safe
as $$
    select properties = '{}' or (
        jsonb_typeof(properties) = 'object'
        and (select count(*) <= 255 and bool_and(
                octet_length(key) <= 512
                and key ~ '^[A-Za-z][A-Za-z0-9_.]*$'
                and key not in ('true', 'false', 'and', 'or', 'not')
                and case jsonb_typeof(value)
                        when 'number' then scale(value::numeric) = 0
                            and value::numeric between -9223372036854775808 and 9223372036854775807
                        else jsonb_typeof(value) in ('string', 'boolean')
                    end)
             from jsonb_each(properties)))
$$;

create table :"schema".streams (
    stream_id bigint generated always as identity primary key,
    name text collate "C" not null unique
        check (octet_length(name) between 1 and 512 and name not like '-%'),
    category text collate "C" not null,
    category_hash integer not null,
    bucket smallint not null
);

-- The position is drawn inside the INSERT, one at a time: the horizon relies on both.
create table :"schema".messages (
    position bigint generated always as identity (cache 1) primary key,
    stream_id bigint not null,
    version bigint not null,
    category_hash integer not null,
    bucket smallint not null,
    size integer not null,  -- of what is sent to readers: a short number such as 1e300 is long when it is read
    id uuid not null,
    time timestamptz not null default :"schema".clock(),
    type text collate "C" not null check (octet_length(type) between 1 and 512),
    data jsonb not null,
    -- Their shape, which readers rely on: who may append is not trusted to have checked it.
    properties jsonb not null check (
        jsonb_typeof(properties) = 'object'
        and not properties @? 'strict $.* ? (@.type() == "object" || @.type() == "array" || @.type() == "null")'),
    metadata jsonb not null check (jsonb_typeof(metadata) = 'object'),
    -- A reader's decoder gives up at some depth. Less than 1,000 bytes cannot be that deep, so they are not searched.
    constraint messages_data_depth check (size <= 1000 or not data @? 'strict $.**{501}'),
    constraint messages_metadata_depth check (size <= 1000 or not metadata @? 'strict $.**{501}'),
    constraint messages_stream_version unique (stream_id, version),
    constraint messages_id unique (id, stream_id)
);
create index messages_category on :"schema".messages (category_hash, position);
create index messages_time on :"schema".messages using brin (position, time) with (autosummarize = on);

-- Marks of sleeping readers: an append that finds one which has not passed wakes them at its commit.
create table :"schema".sleeps (until timestamptz primary key);

-- Has appends from now on find a mark that is in force for `cover` at least: if there is none, one for `mark`, a minute at
-- the most. One serves all sleepers, so few are written; those that have passed go. It runs with the owner's rights: who
-- may delete marks may also lock them, and then no append gets past.
create function :"schema".mark_sleep(mark interval, cover interval) returns void
language plpgsql volatile
security definer set search_path = pg_catalog, pg_temp
as $$
declare
    now timestamptz := :"schema".clock();
begin
    delete from :"schema".sleeps s where s.until < now - mark;
    insert into :"schema".sleeps (until)
    select now + least(mark, interval '1 minute')
    where not exists (select from :"schema".sleeps s where s.until >= now + cover)
    on conflict do nothing;
end $$;
revoke execute on function :"schema".mark_sleep(interval, interval) from public;

-- Everything up to this position is final. Written now and then, upwards only: where a new process starts from.
create table :"schema".horizon (
    single boolean primary key default true check (single),
    "position" bigint not null
);
insert into :"schema".horizon ("position") values (0);

-- Crash recovery and promotion empty this table, which tells a process that positions may have gone backwards.
create unlogged table :"schema".server_life (
    single boolean primary key default true check (single),
    token uuid not null,
    base bigint not null  -- the horizon that was stored when this life began: what lies behind it is on disk
);

-- The token of the server's present life, which begins with whoever asks first. The table is empty after a crash and on
-- a promoted standby. A connection does not outlive that, so what a transaction reads beside the token is of that life.
-- Whoever reads may begin it, and nobody but this function: a life says from which horizon readers start.
create function :"schema".life() returns uuid
language plpgsql volatile
security definer set search_path = pg_catalog, pg_temp
as $$
declare
    present uuid;
begin
    select l.token into present from :"schema".server_life l;
    if not found then
        insert into :"schema".server_life (token, base)
        select gen_random_uuid(), h."position" from :"schema".horizon h
        on conflict do nothing;
        -- Far ahead, at random: an epoch that a crash took back is not drawn again, in this life or a later one.
        if found then
            perform setval(
                format('%I.epochs', :'schema'),
                nextval(format('%I.epochs', :'schema')) + (random() * 1000000000000)::bigint);
        end if;
        select l.token into present from :"schema".server_life l;
    end if;
    return present;
end $$;
revoke execute on function :"schema".life() from public;

-- Refuses what was reckoned in another life of the server: positions and numbers may be others' now. Null: it was
-- reckoned from nothing that a crash can take back.
create function :"schema".require_life(life uuid) returns void
language plpgsql volatile
as $$
begin
    if life <> :"schema".life() then
        raise exception using errcode = 'MP005', message = 'the server was restarted and may have lost commits';
    end if;
end $$;

-- Has what this transaction does on disk before its commit is answered, also where others are not waited for.
create function :"schema".write_through() returns void
language plpgsql volatile
as $$
begin
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
end $$;

-- Which log this is. It stays the same when the log is restored from a backup.
create table :"schema".identity (
    single boolean primary key default true check (single),
    log uuid not null
);
insert into :"schema".identity (log) values (gen_random_uuid());

-- What one append came to. outcome: appended, duplicate, wrong_version (version is then the actual one),
-- id_reused or ids_partly_known (id is then the one in the way).
create type :"schema".appended as (
    stream text,
    outcome text,
    version bigint,
    "position" bigint,
    id uuid
);

-- The row of a stream that was not there a moment ago, locked until the transaction ends.
-- Looking comes before inserting: an upsert burns an id at every append.
create function :"schema".open_stream(stream text) returns :"schema".streams
language plpgsql volatile
as $$
declare
    category text := split_part(stream, '-', 1);
    opened :"schema".streams;
begin
    loop
        insert into :"schema".streams (name, category, category_hash, bucket)
        values (stream, category, :"schema".category_hash(category), :"schema".bucket(stream))
        on conflict (name) do nothing
        returning * into opened;
        exit when found;
        select * into opened from :"schema".streams s where s.name = stream for no key update;
        exit when found;
    end loop;
    return opened;
end $$;

-- An id that begins with the time, in milliseconds (version 7 of UUIDs): such ids come into the index one beside the
-- other, and are found by it alone.
create function :"schema".new_id() returns uuid
language sql volatile
as $$
    select encode(
        set_bit(set_bit(
            overlay(
                uuid_send(gen_random_uuid())
                placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
                from 1 for 6),
            52, 1), 53, 1),
        'hex')::uuid
$$;

-- Whether messages with these ids are in the stream already: all of them with the same content is a
-- duplicate; none of them is null.
create function :"schema".find_repeated(stream_id bigint, stream text, messages jsonb)
returns :"schema".appended
language plpgsql volatile
as $$
declare
    given record;
    result :"schema".appended;
begin
    select count(*) as messages,
           count(m.id) as known,
           min(n.id::text) filter (where m.type <> n.type or m.data <> coalesce(n.data, 'null')
                             or m.properties <> coalesce(n.properties, '{}')) as changed,
           min(m.id::text) as first_known,
           max(m.version) as version,
           max(m."position") as "position"
    into given
    from jsonb_to_recordset(messages) as n(id uuid, type text, data jsonb, properties jsonb)
    left join lateral (
        -- By the id alone, and one by one: no statistics make a plan that reads the stream, or the log.
        select k.*
        from :"schema".messages k
        where k.id = n.id and k.stream_id + 0 = find_repeated.stream_id
        limit 1
    ) m on true;

    if given.known = 0 then
        return null;
    elsif given.changed is not null then
        return row(stream, 'id_reused', null, null, given.changed):::"schema".appended;
    elsif given.known < given.messages then
        return row(stream, 'ids_partly_known', null, null, given.first_known):::"schema".appended;
    end if;
    return row(stream, 'duplicate', given.version, given."position", null):::"schema".appended;
end $$;

-- The INSERT of an append of several messages. The column's default draws each position here, under the lock
-- that the INSERT holds.
create function :"schema".insert_messages(target :"schema".streams, last bigint, messages jsonb)
returns :"schema".appended
language plpgsql volatile
as $$
declare
    result :"schema".appended;
begin
    with inserted as (
        insert into :"schema".messages
            (stream_id, version, category_hash, bucket, size, id, type, data, properties, metadata)
        select target.stream_id, last + n.ordinal, target.category_hash, target.bucket,
               coalesce(octet_length(n.data::text), 0) + coalesce(octet_length(n.properties::text), 0)
                   + coalesce(octet_length(n.metadata::text), 0),
               coalesce(n.id, :"schema".new_id()), n.type, coalesce(n.data, 'null'),
               coalesce(n.properties, '{}'), coalesce(n.metadata, '{}')
        from rows from (
            jsonb_to_recordset(messages)
                as (type text, data jsonb, properties jsonb, metadata jsonb, id uuid)
        ) with ordinality as n(type, data, properties, metadata, id, ordinal)
        order by n.ordinal
        returning messages."position")
    select target.name, 'appended', last + count(*), max(i."position"), null into result from inserted i;
    return result;
end $$;

-- Appends messages to one stream, atomically; the caller has checked them. VOLATILE, so that each statement
-- sees what committed while the one before it waited. The order is what makes it right: the lock; in the next
-- statement the ids; then the version; then the INSERT; then the sleepers.
-- It runs with the owner's rights: who appends needs none on the tables, and so can read no payload, choose no
-- position and rename no stream. Every name in it and in what it calls has its schema; the path is for operators.
-- The settings keep plans to the indexes, also those that were made when there was nothing yet. They hold for what is
-- called here, too.
create function :"schema".write(
    stream text, messages jsonb, expected bigint, wake boolean
) returns :"schema".appended
language plpgsql volatile
security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    target :"schema".streams;
    last bigint;
    message jsonb;
    result :"schema".appended;
begin
    select * into target from :"schema".streams s where s.name = stream for no key update;
    if not found then
        if expected not in (-2, 0) then
            return row(stream, 'wrong_version', 0, null, null):::"schema".appended;
        end if;
        target := :"schema".open_stream(stream);
    end if;

    if messages @? '$[*].id' then
        result := :"schema".find_repeated(target.stream_id, stream, messages);
        if result.outcome is not null then
            return result;
        end if;
    end if;

    select m.version into last from :"schema".messages m
    where m.stream_id = target.stream_id order by m.version desc limit 1;
    last := coalesce(last, 0);
    if expected <> -2 and expected <> last and not (expected = -1 and last > 0) then
        return row(stream, 'wrong_version', last, null, null):::"schema".appended;
    end if;

    if current_setting('transaction_isolation') <> 'read committed' then
        -- A caller with an older snapshot meets what it cannot see, as a conflict: it is told to try again.
        begin
            result := :"schema".insert_messages(target, last, messages);
        exception when unique_violation then
            raise serialization_failure using message =
                'stream ' || quote_literal(stream) || ' changed after this transaction''s snapshot';
        end;
    elsif jsonb_array_length(messages) > 1 then
        result := :"schema".insert_messages(target, last, messages);
    else
        -- One message, the usual case, is spared the record set and the sort.
        message := messages -> 0;
        insert into :"schema".messages
            (stream_id, version, category_hash, bucket, size, id, type, data, properties, metadata)
        values (target.stream_id, last + 1, target.category_hash, target.bucket, octet_length(message::text),
                coalesce((message ->> 'id')::uuid, :"schema".new_id()), message ->> 'type',
                coalesce(message -> 'data', 'null'), coalesce(nullif(message -> 'properties', 'null'), '{}'),
                coalesce(nullif(message -> 'metadata', 'null'), '{}'))
        returning stream, 'appended', messages.version, messages."position", null into result;
    end if;

    if wake and exists (select from :"schema".sleeps where until > (select :"schema".clock())) then
        perform pg_notify(:'schema', '');
    end if;
    return result;
end $$;
revoke execute on function :"schema".write(text, jsonb, bigint, boolean) from public;

-- Appends to several streams, atomically: all or nothing. Each batch has stream, messages and expected.
-- Streams are locked in one order, whoever calls. If one cannot be appended, its outcome is all that comes back.
create function :"schema".write_many(batches jsonb, wake boolean) returns setof :"schema".appended
language plpgsql volatile
as $$
declare
    batch record;
    result :"schema".appended;
    results :"schema".appended[] := '{}';
begin
    begin
        for batch in
            select b.stream, b.messages, coalesce(b.expected, -2) as expected
            from jsonb_to_recordset(batches) as b(stream text, messages jsonb, expected bigint)
            order by b.stream collate "C"
        loop
            result := :"schema".write(batch.stream, batch.messages, batch.expected, wake);
            if result.outcome not in ('appended', 'duplicate') then
                raise exception using errcode = 'MP001';
            end if;
            results := results || result;
        end loop;
    exception when sqlstate 'MP001' then
        results := array[result];
    end;
    return query select * from unnest(results);
end $$;

-- For SQL: appends one or several messages to one stream, and checks them first. expected: -2 any version, -1
-- the stream exists, 0 it does not, else its version. Look at the outcome: a wrong version is not an error, which
-- would abort your transaction. wake => false is for transactions that will be PREPAREd.
create function :"schema".append_messages(
    stream text, messages jsonb, expected bigint default -2, wake boolean default true
) returns :"schema".appended
language plpgsql volatile
as $$
declare
    message record;
begin
    if stream is null or octet_length(stream) not between 1 and 512 or stream like '-%' then
        raise invalid_parameter_value using message =
            'stream: a name such as category-id is wanted, of 1 to 512 bytes and not beginning with a dash';
    elsif jsonb_typeof(messages) is distinct from 'array' or jsonb_array_length(messages) = 0 then
        raise invalid_parameter_value using message = 'messages: an array of at least one message is wanted';
    end if;
    for message in
        select * from jsonb_to_recordset(messages) as n(type text, data jsonb, properties jsonb, metadata jsonb)
    loop
        if message.type is null or octet_length(message.type) not between 1 and 512 then
            raise invalid_parameter_value using message = 'type: 1 to 512 bytes are wanted';
        elsif message.type ~ '[*>]' then
            raise invalid_parameter_value using message =
                'type: ' || quote_literal(message.type)
                || ' has * or >, which stand for other types where types are selected';
        elsif not :"schema".are_properties(coalesce(message.properties, '{}')) then
            raise invalid_parameter_value using message =
                'properties: at most 255 flat integers of 64 bits, strings or booleans are wanted, '
                'each named by a letter followed by letters, digits, _ and .';
        elsif jsonb_typeof(coalesce(message.metadata, '{}')) <> 'object' then
            raise invalid_parameter_value using message = 'metadata: a JSON object is wanted';
        end if;
    end loop;
    if (select count(n.id) > count(distinct n.id) from jsonb_to_recordset(messages) as n(id uuid)) then
        raise invalid_parameter_value using message = 'id: one is there twice in one append';
    end if;
    return :"schema".write(stream, messages, expected, wake);
end $$;

-- The same for one message. A name of its own: PostgreSQL could not tell the two apart by untyped literals.
create function :"schema".append(
    stream text, type text, data jsonb, properties jsonb default '{}', metadata jsonb default '{}',
    id uuid default null, expected bigint default -2, wake boolean default true
) returns :"schema".appended
language sql volatile
as $$
    select :"schema".append_messages(
        stream,
        jsonb_build_array(jsonb_strip_nulls(jsonb_build_object('id', id)) || jsonb_build_object(
            'type', type, 'data', data, 'properties', properties, 'metadata', metadata)),
        expected, wake)
$$;

-- One page of one stream, by version, to its last committed message: at most so many messages and bytes. It is read in
-- callers' transactions, too, which plan as they please: the settings keep plans to the index over streams.
create function :"schema".read_stream(
    stream text, low bigint, high bigint, after bigint, most bigint, bytes bigint, backwards boolean,
    any_type boolean, types text[], type_pattern text, since timestamptz, since_above bigint,
    filter jsonpath, filter_values jsonb
) returns table (
    "position" bigint, name text, version bigint, id bytea, type text, "time" bytea, size integer,
    data text, properties text, metadata text
)
language plpgsql stable
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
#variable_conflict use_column
declare
    number bigint := (select s.stream_id from :"schema".streams s where s.name = stream);
begin
    if backwards then
        return query
        select m."position", read_stream.stream, m.version, uuid_send(m.id), m.type, timestamptz_send(m.time), m.size,
               m.data::text, m.properties::text, m.metadata::text
        from (
            select m.*, sum(m.size) over (order by m.version desc rows unbounded preceding) as bytes
            from (
                select m.*
                from :"schema".messages m
                where m.stream_id = number and m.version > low and m.version <= high
                  and m."position" > after
                  and (any_type or m.type = any(types) or m.type ~ type_pattern)
                  and (since is null or m.time >= since or m."position" <= since_above)
                  and (filter is null or jsonb_path_match(m.properties, filter, filter_values, true))
                order by m.version desc
                limit most
            ) m
        ) m
        where m.bytes - m.size < read_stream.bytes
        order by m.version desc;
    else
        return query
        select m."position", read_stream.stream, m.version, uuid_send(m.id), m.type, timestamptz_send(m.time), m.size,
               m.data::text, m.properties::text, m.metadata::text
        from (
            select m.*, sum(m.size) over (order by m.version asc rows unbounded preceding) as bytes
            from (
                select m.*
                from :"schema".messages m
                where m.stream_id = number and m.version > low and m.version <= high
                  and m."position" > after
                  and (any_type or m.type = any(types) or m.type ~ type_pattern)
                  and (since is null or m.time >= since or m."position" <= since_above)
                  and (filter is null or jsonb_path_match(m.properties, filter, filter_values, true))
                order by m.version asc
                limit most
            ) m
        ) m
        where m.bytes - m.size < read_stream.bytes
        order by m.version asc;
    end if;
end $$;

-- Messages at these positions, in order. The token, if one is given, keeps messages of another life of the server out.
create function :"schema".messages_at(positions bigint[], life uuid) returns table (
    "position" bigint, name text, version bigint, id bytea, type text, "time" bytea, size integer,
    data text, properties text, metadata text
)
language plpgsql stable
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
begin
    return query
    select m."position", s.name, m.version, uuid_send(m.id), m.type, timestamptz_send(m.time), m.size,
           m.data::text, m.properties::text, m.metadata::text
    from :"schema".messages m
    cross join lateral (
        select s.name from :"schema".streams s where s.stream_id = m.stream_id limit 1
    ) s
    where m."position" = any (positions)
      and (life is null or exists (select from :"schema".server_life l where l.token = life))
    order by m."position";
end $$;

-- The version of a stream's last message; 0: it has none.
create function :"schema".last_version(stream text) returns bigint
language plpgsql stable
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
begin
    return coalesce((
        select m.version
        from :"schema".messages m
        where m.stream_id = (select s.stream_id from :"schema".streams s where s.name = stream)
        order by m.version desc
        limit 1), 0);
end $$;

-- The highest version of a stream that stands at or below a position, found by halves; 0: none does. Versions and positions
-- of a stream run in step.
create function :"schema".version_at(stream_id bigint, "position" bigint) returns bigint
language plpgsql stable
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    low bigint := 0;
    high bigint;
    found record;
begin
    -- The usual questions: before all, and after all.
    if "position" <= 0 then
        return 0;
    end if;
    select m.version, m."position" into found from :"schema".messages m
    where m.stream_id = version_at.stream_id order by m.version desc limit 1;
    if found.version is null then
        return 0;
    elsif found."position" <= version_at."position" then
        return found.version;
    end if;
    high := found.version - 1;
    while low < high loop
        -- The first versions may have been removed.
        select m.version, m."position" into found from :"schema".messages m
        where m.stream_id = version_at.stream_id and m.version >= (low + high + 1) / 2 order by m.version limit 1;
        if found."position" <= version_at."position" then
            low := found.version;
        else
            high := (low + high + 1) / 2 - 1;
        end if;
    end loop;
    return low;
end $$;

-- The position after which all messages of this time and later stand. Positions and times run in step but for
-- concurrent appends and corrected clocks: a search by halves finds the border, and the index over blocks of
-- both finds what lies before it all the same.
create function :"schema".position_before(since timestamptz) returns bigint
language plpgsql stable
set enable_seqscan = off
set enable_bitmapscan = on
as $$
declare
    early bigint := 0;
    late bigint;
    middle timestamptz;
    stray bigint;
begin
    late := 1 + coalesce((select m."position" from :"schema".messages m order by m."position" desc limit 1), 0);
    while late - early > 1 loop
        select m.time into middle from :"schema".messages m
        where m."position" >= (early + late) / 2 order by m."position" limit 1;
        if middle >= since then
            late := (early + late) / 2;
        else
            early := (early + late) / 2;
        end if;
    end loop;
    -- "+ 0" keeps the planner from walking the primary key from its start.
    select min(m."position" + 0) into stray from :"schema".messages m
    where m.time >= since and m."position" + 0 < late;
    return coalesce(stray, late) - 1;
end $$;
