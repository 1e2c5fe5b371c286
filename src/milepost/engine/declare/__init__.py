"""What a program declares: subscriptions with their options, handlers, providers and orders. No I/O of its own but
`start`."""
