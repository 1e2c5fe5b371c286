select b.subscription, b."group", b.name, b.positions, b.deliveries from :"schema".beyond(%(survived)s::bigint) b
