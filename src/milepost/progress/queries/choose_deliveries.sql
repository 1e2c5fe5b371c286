-- Positions of the deliveries that are meant, in order, with their states and revisions, among the next so many of a subscription, and up to where that
-- was looked for: by the primary key, whatever the others are. None: there are no further ones.
select array_agg(s."position" order by s."position") filter (where s.is_meant),
       array_agg(s.state order by s."position") filter (where s.is_meant),
       array_agg(s.revision order by s."position") filter (where s.is_meant),
       case when count(*) = %(span)s::bigint then max(s."position") end
from (
    select d."position", d.state, d.revision,
           d.state = any (%(states)s::text[])
           and (%(key)s::text is null or d.key = %(key)s::text)
           and (%(reason)s::text is null or strpos(lower(d.reason), lower(%(reason)s::text)) > 0) as is_meant
    from :"schema".deliveries d
    where d.subscription = %(subscription)s::bigint
      and d."position" > %(after)s::bigint and d."position" <= %(up_to)s::bigint
    order by d."position"
    limit %(span)s::bigint
) s
