-- A person decides about deliveries. What each says now is locked first, one by one and in order, and what it is moved
-- from is what it says then: an owner that writes it at the same moment is waited for, and what an owner writes later
-- does not find its revision. Workers are to look at once.
with decision as materialized (
    select :"schema".clock() as now
), locked as materialized (
    select p."position", d.state
    from (select distinct p."position" from unnest(%(positions)s::bigint[]) p("position") order by p."position") p
    left join lateral (
        select d.state from :"schema".deliveries d
        where d.subscription = %(subscription)s::bigint and d."position" = p."position"
        limit 1
        for no key update
    ) d on true
), moved as (
    update :"schema".deliveries d
    set state = %(state)s::text, attempts = case when %(anew)s::boolean then 0 else d.attempts end,
        due = n.now, since = n.now, revision = d.revision + 1
    from locked l, decision n
    where d.subscription = %(subscription)s::bigint and d."position" = l."position"
      and l.state = any (%(states)s::text[])
    returning d."position"
), acted as materialized (
    select :"schema".act(%(subscription)s::bigint) from (select from moved limit 1) m
)
select l."position", l.state, m."position" is not null, (select count(*) from acted)
from locked l
left join moved m on m."position" = l."position"
order by l."position"
