"""Lanes that are put elsewhere: only behind a barrier, and when nobody has them."""

from milepost.progress.control import LanePlace, PostgresControl
from progress.keepers import PostgresKeeper
from progress.lanes import taken


async def place(postgres: PostgresKeeper, subscription: int, barrier: str) -> int | None:
    control = PostgresControl(postgres.database, postgres.schema)
    lanes = [LanePlace(lane=number, position=5) for number in range(2)]
    return await control.place(
        subscription, barrier, lanes, {}, life=None, above=5, up_to=None, followers=(), since=None
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
