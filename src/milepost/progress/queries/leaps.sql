select p.lane, p.low, p.high from :"schema".leaps p
where p.subscription = %(subscription)s::bigint
order by p.lane, p.low
