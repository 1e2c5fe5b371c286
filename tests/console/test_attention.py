"""What a person should look at first."""

from datetime import UTC, datetime

import msgspec
import pytest

from milepost.console.pages.overview import attention_remarks
from milepost.console.snapshot import LogState, OverviewSnapshot, WorkerSnapshot
from milepost.dispatch import LimitReached
from milepost.engine.observe.lag import Lag
from milepost.engine.operate.info import SubscriptionInfo
from milepost.log.protocol import HorizonHolder
from support import MakeMilepost


def snapshot(
    *subscriptions: SubscriptionInfo,
    holders: tuple[HorizonHolder, ...] = (),
    workers: tuple[WorkerSnapshot, ...] = (),
) -> OverviewSnapshot:
    return OverviewSnapshot(1, 0.0, datetime.now(UTC), subscriptions, workers, [], LogState(41, 50, None, holders))


def holder(age: float | None) -> HorizonHolder:
    return HorizonHolder("7", 4711, "slow checkout", "idle in transaction", age, None)


@pytest.mark.parametrize(
    ("age", "gravity"), [(3.0, None), (11.0, "warning"), (61.0, "problem"), (None, "warning")]
)
def test_a_transaction_that_followers_wait_for(age: float | None, gravity: str | None) -> None:
    """One that lasts a moment is on the overview, but does not push all else down."""
    found = attention_remarks(snapshot(holders=(holder(age),)))
    assert [remark.severity for remark in found] == ([gravity] if gravity else [])
    assert all("at position 41 for a transaction that appended: pid 4711" in remark.words for remark in found)


def test_of_many_that_are_alike_some_are_named_and_the_worst_come_first() -> None:
    silent = [
        WorkerSnapshot(f"w-{n}", "shop", "milepost", datetime.now(UTC), silent=99, lease=30, lanes=1, consumers=0)
        for n in range(9)
    ]
    first, *others = attention_remarks(snapshot(holders=(holder(61),), workers=tuple(silent)))
    assert first.severity == "problem"
    assert [remark.words.partition(" of group")[0] for remark in others] == [
        "w-0",
        "w-1",
        "w-2",
        "and 6 more workers that are silent",
    ]


async def test_one_that_reads_no_further(make_mp: MakeMilepost) -> None:
    async with make_mp() as mp:
        await mp.create_subscription("shipping")
        info = await mp.manage("shipping").info()
    limit = LimitReached(limit="max_unrouted", most=9, rows=9, filters=("a == 1",))
    lanes = tuple(msgspec.structs.replace(lane, stopped=limit) for lane in info.lanes)
    [remark] = attention_remarks(
        snapshot(msgspec.structs.replace(info, status="stopped", stopped=str(limit), lanes=lanes))
    )
    assert (remark.severity, remark.page, remark.state) == ("problem", "parked", "unrouted")
    assert remark.words == (
        "reads no further: 9 messages are unrouted (max_unrouted=9); "
        "no consumer takes the next one; their filters: a == 1"
    )


async def test_one_that_nobody_pulls(make_mp: MakeMilepost) -> None:
    async with make_mp() as mp:
        await mp.create_subscription("pulled", tracking="all")
        info = await mp.manage("pulled").info()
    waits = msgspec.structs.replace(info, lag=Lag(7, 120))
    [remark] = attention_remarks(snapshot(waits))
    assert (remark.severity, remark.words) == (
        "warning",
        "has waited 2 m for somebody to pull, with 7 positions behind",
    )
    for other in (info, msgspec.structs.replace(waits, rate=3.0), msgspec.structs.replace(info, lag=Lag(7, 30))):
        assert attention_remarks(snapshot(other)) == []
