"""The tiers and shards of the tests: `make test` runs the fast one, `make test-all` all, or one by its name.

A test is in the fast shard unless a mark says otherwise: `@pytest.mark.shard("faults")` on it, its class, its
module or a value of its parameters. The nearest mark counts.
"""

import pytest

FAST = "fast"

COLLECTED = pytest.StashKey[dict[str, list[str]]]()
"""The names of all tests that were collected, also of those that do not run, by their shard."""

SHARDS = {
    FAST: "the whole behaviour of the product, every package, one short case of each fault, process and page",
    "faults": "killed workers, lost and cut connections, restarted servers, at length and in every variant",
    "deploys": "old and new programs at a time, in every variant",
    "processes": "the command and several servers as processes of their own, in every variant",
    "hostile": "every field of the server with every hostile value, fuzzing by its description",
    "browser": "every page of the console, in a browser",
    "oldest": "on the oldest PostgreSQL: what is the same on each in the fast shard",
    "large": "large tables, many messages, plans and memory",
    "simulation": "the simulation and mutations, with more seeds than the fast shard has",
    "soak": "random load and random faults, for minutes or hours: MILEPOST_SOAK_SECONDS says how long",
}


def shard_of(item: pytest.Item) -> str:
    """Return the shard of a test, and refuse one that there is not."""
    mark = item.get_closest_marker("shard")
    if mark is None:
        return FAST
    if len(mark.args) != 1 or mark.kwargs or mark.args[0] not in SHARDS:
        raise pytest.UsageError(f"{item.nodeid}: shard must be one of {', '.join(SHARDS)}, got {mark.args}")
    return str(mark.args[0])
