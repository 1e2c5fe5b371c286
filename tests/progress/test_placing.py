"""Lanes that are put elsewhere: only behind a barrier, and when nobody has them."""

from collections.abc import Sequence

import pytest

from milepost.dispatch import AttemptTally, Cursor, ExchangeWrite
from milepost.progress.postgres.operate import PlacedLane, PostgresControl
from progress.keepers import PostgresKeeper
from progress.lanes import taken


async def place(
    postgres: PostgresKeeper, subscription: int, barrier: str, stood: Sequence[Cursor] = (Cursor(0), Cursor(0))
) -> int | None:
    control = PostgresControl(postgres.database, postgres.schema)
    lanes = [PlacedLane(lane=number, position=5) for number in range(2)]
    return await control.place(
        subscription, barrier, stood, lanes, {}, life=None, above=5, up_to=None, followers=(), since=None
    )


async def set_barrier(postgres: PostgresKeeper, subscription: int, barrier: str) -> str:
    return await PostgresControl(postgres.database, postgres.schema).set_barrier(subscription, barrier)


async def test_they_stay_while_a_live_worker_has_one(postgres: PostgresKeeper) -> None:
    held = await taken(postgres.progress)
    assert await set_barrier(postgres, held.subscription, "mine") == "mine"
    assert await place(postgres, held.subscription, "mine") is None
    await postgres.advance(60)
    assert await set_barrier(postgres, held.subscription, "mine") == "mine"
    assert await place(postgres, held.subscription, "mine") == 0


async def test_they_stay_without_a_barrier_of_ones_own_that_stands(postgres: PostgresKeeper) -> None:
    held = await taken(postgres.progress)
    await postgres.advance(60)
    assert await place(postgres, held.subscription, "mine") is None
    assert await set_barrier(postgres, held.subscription, "another's") == "another's"
    assert await place(postgres, held.subscription, "mine") is None
    await postgres.advance(60)
    assert await place(postgres, held.subscription, "another's") is None


@pytest.mark.shard("variants", fast=["cursor0"])
@pytest.mark.parametrize("cursor", [Cursor(3), Cursor(0, ((2, 3),))])
async def test_they_stay_if_an_owner_that_was_taken_for_dead_has_written(
    postgres: PostgresKeeper, cursor: Cursor
) -> None:
    held = await taken(postgres.progress)
    await postgres.advance(60)
    assert await set_barrier(postgres, held.subscription, "mine") == "mine"
    write = ExchangeWrite(cursor, [], AttemptTally())
    [written] = await postgres.progress.write([(held, write)])
    assert written is not None
    assert await place(postgres, held.subscription, "mine") is None
    # It was fenced off.
    assert await postgres.progress.write([(written.held, write)]) == [None]
    assert await place(postgres, held.subscription, "mine", [cursor, Cursor(0)]) == 0
