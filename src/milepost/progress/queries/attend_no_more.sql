-- A process does nothing any more for the consumers of a subscription.
with told as (
    delete from :"schema".attending a where a.subscription = %(subscription)s::bigint and a.worker = %(worker)s::text
)
delete from :"schema".serving v where v.subscription = %(subscription)s::bigint and v.worker = %(worker)s::text
