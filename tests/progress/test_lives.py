"""What was taken or reckoned in one life of the server writes nothing in another one."""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from milepost.dispatch import AttemptTally, Cursor, Exchange, ExchangeWrite
from milepost.progress.memory import MemoryProgress
from milepost.progress.postgres.operate import PlacedLane, PostgresConsumerSubscriptions, PostgresControl
from milepost.progress.protocol import AnotherLife, LaneGrant, Progress, StaleLane
from progress.keepers import PostgresKeeper
from progress.lanes import Owner, asking, definition, row, taken


@pytest.fixture
async def owner(postgres: PostgresKeeper) -> Owner:
    return Owner(postgres.progress, await taken(postgres.progress))


def at(position: int, *ahead: tuple[int, int]) -> ExchangeWrite:
    return ExchangeWrite(Cursor(position, ahead), (), AttemptTally())


def _nothing(life: UUID) -> int:
    raise AssertionError(life)


async def another_life(postgres: PostgresKeeper) -> None:
    """A crash that took nothing back: revisions and epochs are what they were."""
    await postgres.run("truncate {}.server_life")


async def exchange(progress: Progress, held: LaneGrant, write: ExchangeWrite | None) -> None:
    asked = None if write is not None else asking()
    await progress.exchange(held, Exchange(0.0, write, asked), stall_after=1000, on_park="block")


async def cursor(progress: Progress, held: LaneGrant) -> None:
    await exchange(progress, held, at(3))


async def rows(progress: Progress, held: LaneGrant) -> None:
    await Owner(progress, held).add(row(7))


async def question(progress: Progress, held: LaneGrant) -> None:
    await exchange(progress, held, None)


async def release(progress: Progress, held: LaneGrant) -> None:
    await progress.release(held, None)


async def last_write(progress: Progress, held: LaneGrant) -> None:
    await progress.release(held, Exchange(0.0, at(3), None))


@pytest.mark.parametrize("write", [cursor, rows, question, release, last_write])
@pytest.mark.parametrize("is_begun", [True, False])
async def test_a_lane_is_not_written(
    postgres: PostgresKeeper, owner: Owner, write: Callable[[Progress, LaneGrant], Awaitable[None]], is_begun: bool
) -> None:
    """Neither before the new life has a token, nor after."""
    await another_life(postgres)
    if is_begun:
        await postgres.progress.life()
    with pytest.raises(StaleLane):
        await write(postgres.progress, owner.held)
    [held] = await postgres.progress.take(owner.held.subscription, [0])
    assert held.state.cursor == Cursor(0)
    await write(postgres.progress, held)


async def test_of_lanes_that_are_written_together_those_of_another_life_are_missing(
    postgres: PostgresKeeper, owner: Owner
) -> None:
    await another_life(postgres)
    [other] = await postgres.progress.take(owner.held.subscription, [1])
    written = await postgres.progress.write([(held, at(3)) for held in (owner.held, other)])
    assert [one is not None for one in written] == [False, True]


async def test_nothing_is_taken_by_who_reads_the_log_of_another_life(
    postgres: PostgresKeeper, owner: Owner
) -> None:
    life = await postgres.progress.life()
    await another_life(postgres)
    assert await postgres.progress.take(owner.held.subscription, [0], log_life=life) == []
    life = await postgres.progress.life()
    [held] = await postgres.progress.take(owner.held.subscription, [0], log_life=life)
    assert (held.life, held.revision) == (life, owner.held.revision + 1)


async def test_a_new_subscription_is_refused(postgres: PostgresKeeper) -> None:
    """Where it is to begin may be elsewhere now."""
    life = await postgres.progress.life()
    await another_life(postgres)
    with pytest.raises(AnotherLife):
        await postgres.progress.declare([definition(life=life)])
    created = PostgresConsumerSubscriptions(postgres.database, postgres.schema)
    with pytest.raises(AnotherLife):
        await created.create(definition(life=life, lanes=1), {}, "error")
    assert await postgres.progress.known("g") == set()
    await postgres.progress.declare([definition(life=await postgres.progress.life())])
    # One that is there begins nowhere.
    await postgres.progress.declare([definition(life=life)])


async def test_a_move_is_refused(postgres: PostgresKeeper) -> None:
    [opened] = await postgres.progress.declare([definition()])
    control = PostgresControl(postgres.database, postgres.schema)
    lanes = [PlacedLane(lane=number, position=5) for number in range(2)]
    options: dict[str, Any] = {"above": 5, "up_to": None, "followers": (), "since": None}
    life = await postgres.progress.life()
    await another_life(postgres)
    assert await control.set_barrier(opened.id, "mine") == "mine"
    with pytest.raises(AnotherLife):
        await control.place(opened.id, "mine", [Cursor(0), Cursor(0)], lanes, {}, life=life, **options)
    life = await postgres.progress.life()
    assert await control.place(opened.id, "mine", [Cursor(0), Cursor(0)], lanes, {}, life=life, **options) == 0


async def test_progress_in_memory_goes_back_with_the_log() -> None:
    progress, [first, second] = MemoryProgress(), [uuid4(), uuid4()]
    await progress.follow(first, _nothing)
    held = await taken(progress)
    owner = Owner(progress, held)
    await owner.add(row(5), row(8))
    await progress.follow(first, _nothing)
    await owner.swap(at(9, (12, 14), (20, 30)))
    await progress.follow(second, lambda _: 6)
    with pytest.raises(StaleLane):
        await owner.ask()
    assert await progress.take(held.subscription, [0], log_life=first) == []
    [again] = await progress.take(held.subscription, [0], log_life=second)
    assert again.state.cursor == Cursor(6)
    assert sorted(progress._subscriptions[held.subscription].lanes[0].rows) == [5]
