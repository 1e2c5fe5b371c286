"""Random schedules of the simulation, with each store of progress beside the plain one: they say the same."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from dispatch.simulation import store, world
from dispatch.simulation.replay import replay
from dispatch.simulation.schedule import LASTING, drawn
from progress.keepers import Keeper, MemoryKeeper, PostgresKeeper
from progress.twin import Told, TwinStore

SEEDS = 3
MORE_SEEDS = 12


@pytest.fixture(params=["memory", "embedded", pytest.param("postgresql_15", marks=pytest.mark.shard("oldest"))])
def twins(request: pytest.FixtureRequest, schema: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every store of a simulation has a twin."""
    with asyncio.Runner() as runner:
        keeper: Keeper = MemoryKeeper()
        if request.param != "memory":
            url = request.getfixturevalue(f"{request.param}_url")
            keeper = runner.run(PostgresKeeper(url, schema).open())
        monkeypatch.setattr(TwinStore, "runner", runner, raising=False)
        monkeypatch.setattr(TwinStore, "keeper", keeper, raising=False)
        monkeypatch.setattr(TwinStore, "exchanges", 0)
        monkeypatch.setattr(world, "Store", TwinStore)
        monkeypatch.setattr(store, "Questions", Told)
        yield
        runner.run(keeper.close())


KINDS = [kind for kind in LASTING if kind != "reordered"]
"""Only subscriptions with consumers get another order while they run, and they are no part of `Progress`."""


@pytest.mark.shard(
    "simulation",
    fast=[
        "memory-local",
        "memory-ordered",
        "memory-routed",
        "memory-pinned",
        "memory-crossed",
        "embedded-routed",
        "embedded-crossed",
    ],
)
@pytest.mark.usefixtures("twins")
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_schedule_gives_the_same_answers(kind: str) -> None:
    compare(kind, range(SEEDS))


@pytest.mark.shard("simulation")
@pytest.mark.usefixtures("twins")
@pytest.mark.parametrize("kind", KINDS)
def test_more_schedules_give_the_same_answers(kind: str) -> None:
    compare(kind, range(SEEDS, MORE_SEEDS))


def compare(kind: str, seeds: Sequence[int]) -> None:
    for seed in seeds:
        replay(*drawn(kind, seed))
    assert TwinStore.exchanges > 10 * len(seeds)
