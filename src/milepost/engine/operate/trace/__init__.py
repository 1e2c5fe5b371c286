"""Trace: where each message is for each subscription, from what is stored.

`Tracer` loads, `SubscriptionHistory` decides without I/O, `Trace` and `Traced` are the results."""
