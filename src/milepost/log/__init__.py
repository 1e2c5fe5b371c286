"""The message store: append, read, the horizon, wake-ups."""
