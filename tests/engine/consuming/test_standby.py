"""Several processes without a server: one owns the subscription, the others stand by and take over."""

import asyncio
import logging

import pytest

from engine.consuming.processes import Process, Start
from engine.consuming.taking import PATIENCE, ack, is_dry, orders, take, taking, until
from engine.vanished import expire
from milepost import ConsumerClosed, Milepost
from patience import within
from support import MakeMilepost


async def test_a_second_process_stands_by_and_says_so(
    mp: Milepost, make_mp: MakeMilepost, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await mp.create_subscription("shipping")
    async with make_mp() as other, mp.consumer("shipping") as owner, other.consumer("shipping") as second:
        assert (owner.standby, second.standby) == (False, True)
        assert "another process serves its consumers: those of this one stand by" in caplog.text
        await orders(mp, 3)
        assert await ack(await take(owner, 3)) == [1, 2, 3]
        assert await is_dry(second)
        await until(lambda: _stands_by(mp, 1))
        info = await mp.manage("shipping").info()
        assert (info.consumers, len(info.owners)) == (2, 1)
        assert set(info.standby).isdisjoint(info.owners)


async def _stands_by(mp: Milepost, count: int) -> bool:
    return len((await mp.manage("shipping").info()).standby) == count


async def test_it_takes_over_at_once_when_the_owner_leaves_in_good_order(
    mp: Milepost, make_mp: MakeMilepost, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not look by itself for an hour: the other one tells."""
    monkeypatch.setattr("milepost.engine.lanes.balancer.BALANCE_SECONDS", 3600.0)
    monkeypatch.setattr("milepost.log.postgres.wakeups.PROBE_TIMEOUT_SECONDS", PATIENCE)
    caplog.set_level(logging.INFO)
    await mp.create_subscription("shipping", timeout=3600, lease=3600)
    await orders(mp, 5)
    async with make_mp() as other:
        async with mp.consumer("shipping") as owner, other.consumer("shipping") as second:
            held = await take(owner, 3)
            await held[0].ack()
            await owner.__aexit__(None, None, None)
            given = await take(second, 4)
            assert [(each.position, each.attempt) for each in given] == [(2, 1), (3, 1), (4, 1), (5, 1)]
            assert not second.standby
            assert "takes over: it serves its consumers from now on" in caplog.text


async def test_who_stands_by_is_not_counted_and_no_more_are_served_than_there_may_be(
    mp: Milepost, make_mp: MakeMilepost
) -> None:
    await mp.create_subscription("shipping", max_consumers=1)
    await orders(mp, 1)
    async with make_mp() as other, mp.consumer("shipping") as owner, other.consumer("shipping") as reserve:
        assert (owner.standby, reserve.standby) == (False, True)
        for full in (mp, other):
            with pytest.raises(ConsumerClosed, match="too many consumers"):
                await full.consumer("shipping").__aenter__()
        held = await take(owner, 1)
        assert await is_dry(reserve)
        await owner.__aexit__(None, None, None)
        assert [each.position for each in await take(reserve, 1)] == [held[0].position]
        # There is room in the first process again, for one who stands by.
        async with mp.consumer("shipping") as back:
            assert back.standby


async def test_as_long_as_the_owner_has_a_consumer_it_stays_the_owner(mp: Milepost, make_mp: MakeMilepost) -> None:
    await mp.create_subscription("shipping")
    async with make_mp() as other, mp.consumer("shipping") as first, other.consumer("shipping") as standby:
        async with mp.consumer("shipping") as second:
            await first.__aexit__(None, None, None)
            await orders(mp, 1)
            assert await ack(await take(second, 1)) == [1]
            assert standby.standby


@pytest.mark.shard("faults")
async def test_many_processes_come_and_go_and_one_owns_it(mp: Milepost, make_mp: MakeMilepost) -> None:
    await mp.create_subscription("shipping")
    seen: list[int] = []
    for turn in range(5):
        async with make_mp() as one, make_mp() as two, make_mp() as three:
            async with (
                taking(one, "shipping") as first,
                taking(two, "shipping") as second,
                taking(three, "shipping") as third,
            ):
                await orders(mp, 10)
                takers = (first, second, third)
                await until(lambda: sum(len(taker.seen) for taker in takers) == 10)  # noqa: B023
                owners = [taker for taker in takers if taker.seen]
                assert len(owners) == 1, turn
                seen += owners[0].seen
    assert sorted(seen) == list(range(1, 51))


async def test_disjoint_filters_in_two_processes(mp: Milepost, make_mp: MakeMilepost) -> None:
    """What only the other process's consumer wants waits, and holds up nobody, until that takes over."""
    await mp.create_subscription("shipping")
    async with make_mp() as other:
        async with (
            mp.consumer("shipping", where="n < 5") as low,
            other.consumer("shipping", where="n >= 5") as high,
        ):
            await orders(mp, 10)
            assert await ack(await take(low, 5)) == [1, 2, 3, 4, 5]
            assert high.standby
            await until(lambda: _unrouted(mp, 5))
            # A consumer of the owner that matches gets it at once.
            async with mp.consumer("shipping", where="n == 5") as five:
                assert await ack(await take(five, 1)) == [6]
            await low.__aexit__(None, None, None)
            assert await ack(await take(high, 4)) == [7, 8, 9, 10]
            await until(lambda: _unrouted(mp, 0))


async def _unrouted(mp: Milepost, count: int) -> bool:
    return (await mp.manage("shipping").info()).unrouted == count


class TestProcesses:
    @pytest.mark.shard("faults")
    async def test_take_over_at_once_after_sigterm(self, mp: Milepost, start: Start) -> None:
        await mp.create_subscription("shipping", lease=3600, timeout=3600)
        first = start()
        await first.until("owner")
        second = start()
        await second.until("standby")
        await orders(mp, 10)
        await first.until_got(10)
        await first.terminate()
        await orders(mp, 10)
        assert await second.until_got(10) == list(range(11, 21))

    async def test_take_over_within_the_lease_after_sigkill(self, mp: Milepost, start: Start) -> None:
        await mp.create_subscription("shipping", lease=60, timeout=3600)
        first = start("hold")
        await first.until("owner")
        second = start()
        await second.until("standby")
        await orders(mp, 10)
        await first.until_got(10)
        first.kill()
        await expire(mp, first.pid)
        # What it held comes to the other one, which does not wait for the time-out.
        assert sorted(await second.until_got(10)) == list(range(1, 11))
        assert set(second.attempts.values()) == {1}
        await until(lambda: _has_passed(mp))

    @pytest.mark.shard("faults")
    async def test_disjoint_filters(self, mp: Milepost, start: Start) -> None:
        await mp.create_subscription("shipping", lease=60)
        low = start(where="n < 50")
        await low.until("owner")
        high = start(where="n >= 50")
        await high.until("standby")
        await orders(mp, 100)
        assert await low.until_got(50) == list(range(1, 51))
        low.kill()
        await expire(mp, low.pid)
        assert sorted(await high.until_got(50)) == list(range(51, 101))

    @pytest.mark.shard("faults")
    async def test_killed_again_and_again_nothing_is_lost(self, mp: Milepost, start: Start) -> None:
        await mp.create_subscription("shipping", lease=1)
        for turn in range(5):
            process = start()
            await until(lambda: bool(process.said))  # noqa: B023
            await orders(mp, 30)
            owner = await _owner(mp, start)
            await until(lambda: len(start.got()) >= 30 * turn + 5)  # noqa: B023
            owner.kill() if turn % 2 else await owner.terminate()
        start()
        await until(lambda: start.got() == set(range(1, 151)))
        await until(lambda: _has_passed(mp))


async def _owner(mp: Milepost, start: Start) -> Process:
    """The process that owns the subscription now; one that was killed is named until its lease ends."""
    async with within(PATIENCE, mp.manage("shipping").info):
        while True:
            owners = (await mp.manage("shipping").info()).owners
            for process in start.started:
                if not process.is_over and any(f"-{process.pid}-" in owner for owner in owners):
                    return process
            await asyncio.sleep(0.01)


async def _has_passed(mp: Milepost) -> bool:
    info = await mp.manage("shipping").info()
    return not (info.lag.positions or info.retrying or info.unrouted or info.waiting)
