-- Whether something still runs that ran when everything was to stand still.
select exists (
    select from :"schema".serving v
    where v.subscription = %(subscription)s::bigint and v.waits and :"schema".lives(v.worker, v.until))
