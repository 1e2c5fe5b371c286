"""Pull: claim deliveries of a subscription with `tracking="all"`, and settle them in bulk."""
