-- Nothing for a worker whose definition is not the newest: it would pass what only a newer program handles; nothing for
-- one that does not know what people have done meanwhile; and nothing for one that reads the log in another life of the
-- server. The lock keeps the first two out while lanes are taken.
with current as materialized (
    select s.definition, s.acted, :"schema".life() as life
    from :"schema".subscriptions s where s.id = %(subscription)s::bigint for share
), taken as materialized (
    select case
               when c.definition > %(number)s::integer or c.acted > %(acted)s::bigint or c.life <> %(log_life)s::uuid
               then null
               else :"schema".take(%(subscription)s::bigint, %(lanes)s::integer[])
           end as lanes,
           case when c.definition > %(number)s::integer then c.definition end as newer,
           c.life
    from current c
), told as (
    update :"schema".serving v
    set lanes = v.lanes || array(
        select (l.value ->> 'lane')::integer from json_array_elements(t.lanes -> 'lanes') l(value))
    from taken t
    where v.subscription = %(subscription)s::bigint and v.worker = %(worker)s::text and t.lanes is not null
)
select t.lanes::text, t.newer, t.life from taken t
