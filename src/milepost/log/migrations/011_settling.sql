-- Settling once: who asks again because an answer was lost is answered as before.
-- oldest: 1

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
