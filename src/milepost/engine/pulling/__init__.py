"""Pulling: whoever comes claims deliveries of a subscription with `tracking="all"`, and settles them in bulk."""
