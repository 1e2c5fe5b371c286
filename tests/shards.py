"""The tiers and shards of the tests: `make test` runs the fast one, `make test-all` all, or one by its name.

A test is in the fast shard unless a mark says otherwise: `@pytest.mark.shard("faults")` on it, its class, its
module or a value of its parameters. The nearest mark counts. Where only some of many variants are to be fast, the
mark names these: `@pytest.mark.shard("faults", fast=["in_threads"])` on a test leaves that one here, and moves the
others, unless another mark says where these belong.
"""

import pytest

FAST = "fast"

ABSENT = pytest.StashKey[set[str]]()
"""The variants that marks leave in the fast shard, and that were not collected."""

COLLECTED = pytest.StashKey[dict[str, list[str]]]()
"""The names of all tests that were collected, also of those that do not run, by their shard."""

SHARDS = {
    FAST: "the whole behaviour of the product, every package, one short case of each fault, process and page",
    "faults": "killed workers, lost and cut connections, restarted servers, at length and in every variant",
    "deploys": "old and new programs at a time, in every variant",
    "processes": "the command and several servers as processes of their own, in every variant",
    "variants": "what goes through the same code as a fast test: other values, kinds of handlers, moments",
    "hostile": "every field of the server with every hostile value, fuzzing by its description",
    "browser": "every page of the console, in a browser",
    "oldest": "the oldest PostgreSQL, and unusual settings: what is the same on each in the fast shard",
    "large": "large tables, many messages, plans and memory",
    "simulation": "the simulation and mutations, with more seeds than the fast shard has",
    "soak": "random load and random faults, for minutes or hours: MILEPOST_SOAK_SECONDS says how long",
}


def shard_of(item: pytest.Item) -> str:
    """Return the shard of a test, and refuse one that there is not."""
    for mark in sorted(item.iter_markers("shard"), key=lambda mark: "fast" in mark.kwargs):
        if len(mark.args) != 1 or mark.kwargs.keys() - {"fast"} or mark.args[0] not in SHARDS:
            raise pytest.UsageError(f"{item.nodeid}: shard must be one of {', '.join(SHARDS)}, got {mark.args}")
        if variant_of(item) not in mark.kwargs.get("fast", ()):
            return str(mark.args[0])
    return FAST


def variant_of(item: pytest.Item) -> str | None:
    """Return what a test has in brackets behind its name."""
    return item.callspec.id if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None


def variants_that_are_not_there(items: list[pytest.Item]) -> set[str]:
    """Return the variants that a mark leaves in the fast shard, and that no test has."""
    named = {
        f"{item.nodeid.partition('[')[0]}[{variant}]"
        for item in items
        for mark in item.iter_markers("shard")
        for variant in mark.kwargs.get("fast", ())
    }
    return named - {item.nodeid for item in items}
