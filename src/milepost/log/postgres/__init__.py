"""The log in PostgreSQL: appender, reader, horizon, wake-ups and feed."""
