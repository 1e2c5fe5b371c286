"""What Milepost costs, measured beside a raw psycopg loop over the same rows: `python -m benchmarks --help`."""
