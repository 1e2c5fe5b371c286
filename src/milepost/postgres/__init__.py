"""PostgreSQL in one place: the driver, connections, statements and the schema. It knows nothing of the log."""
