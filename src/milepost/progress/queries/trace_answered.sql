-- Who has told what it does since then, and for which subscription.
select r.subscription, r.worker from :"schema".reports r where r.told >= %(since)s::timestamptz
