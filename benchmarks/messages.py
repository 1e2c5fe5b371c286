"""The messages that everybody writes: about 150 bytes of JSON, two properties, streams in a hundred categories."""

from typing import Any

CATEGORIES = 100
STREAMS = 1_000
"""How many streams exist where a work says nothing else."""
BATCH = 100
"""The messages of a batch."""
TYPE = "order.placed"
CATEGORY = "c7"
"""The one category in a hundred that is read."""


def stream_name(number: int) -> str:
    """The name of the stream with this number, counted from 0."""
    return f"c{number % CATEGORIES}-{number}"


def data(number: int) -> dict[str, Any]:
    """A payload of about 150 bytes."""
    return {
        "order": number,
        "customer": 48_213,
        "currency": "EUR",
        "total": 129_95,
        "lines": [{"article": "A-4711", "count": 2}, {"article": "B-0815", "count": 1}],
        "express": False,
    }


def properties(number: int) -> dict[str, int | str]:
    """Two properties, as filters look at."""
    return {"customer": number % 1_000, "region": "EU"}
