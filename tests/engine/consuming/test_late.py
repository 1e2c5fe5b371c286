"""Consumers that are late: what they have goes to others, and they get as much as they manage."""

from contextlib import AbstractAsyncContextManager

import pytest

from engine.consuming.taking import ack, orders, taking, until
from milepost import Lost, Milepost, NewMessage, Retry
from milepost.engine.consuming.allowance import FEW, Allowance
from milepost.engine.consuming.consumer import Consumer
from milepost.engine.consuming.delivery import Delivery

TIMEOUT = 2.0


async def begin(mp: Milepost, count: int) -> AbstractAsyncContextManager[Consumer]:
    """A subscription with so many messages, which is stalled by 50 failures, and a consumer for all of them."""
    await mp.create_subscription("shipping", timeout=TIMEOUT, stall_after=50, retry=Retry(delay=3600))
    await mp.append("order-1", [NewMessage("order.placed") for _ in range(count)])
    return mp.consumer("shipping", capacity=count)


async def all_of(consumer: Consumer, count: int) -> list[Delivery]:
    """What it has, once that is so many; it begins with all of it."""
    await until(lambda: consumer.in_flight == count)
    return consumer.at_hand(count)


class TestAConsumerThatHangs:
    async def test_costs_others_nothing(self, mp: Milepost) -> None:
        async with await begin(mp, 300) as hanging:
            await all_of(hanging, 300)
            async with taking(mp, "shipping") as other:
                await other.until(299 - FEW)
                assert set(other.attempts) == {1}
                await orders(mp, 10)
                # It has room for one, which comes in turn.
                await other.until(309 - FEW)
            assert hanging.statistics().timed_out == FEW
            info = await mp.manage("shipping").info()
            assert (info.stalled, info.retrying) == (None, FEW)

    async def test_also_when_it_looks_at_nothing(self, mp: Milepost) -> None:
        async with await begin(mp, 300) as hanging:
            await until(lambda: hanging.in_flight == 300)
            async with taking(mp, "shipping") as other:
                await other.until(299)
                assert set(other.attempts) == {1}
            assert hanging.statistics().timed_out == 0

    async def test_gets_more_by_what_it_settles(self, mp: Milepost) -> None:
        async with await begin(mp, 100 + FEW) as consumer:
            await all_of(consumer, 100 + FEW)
            sizes = []
            for count in (1, 2, 4, 8, 16, 32, 37):
                had = await all_of(consumer, count)
                await ack(had)
                sizes.append(len(had))
            assert sum(sizes) == 100
            await until(lambda: consumer.in_flight == 0)

    async def test_cannot_settle_what_others_have(self, mp: Milepost, caplog: pytest.LogCaptureFixture) -> None:
        async with await begin(mp, 50) as consumer:
            had = await all_of(consumer, 50)
            await until(lambda: consumer.statistics().timed_out == FEW)
            settled = await consumer.settle(ack=had)
            assert settled.moved == ()
        assert f"{consumer.name} was late: 30 of what it has go to others" in caplog.text


async def test_what_was_extended_stays(mp: Milepost) -> None:
    async with await begin(mp, 50) as consumer:
        had = await all_of(consumer, 50)
        await had[0].extend(3600)
        await had[-1].extend(3600)
        await until(lambda: consumer.statistics().timed_out == FEW)
        await ack([had[0], had[-1]])
        with pytest.raises(Lost):
            await had[-2].ack()


async def test_what_it_settles_is_what_it_manages(mp: Milepost) -> None:
    """A few of many are slow: each is an attempt of its own, as it is its consumer's time."""
    async with await begin(mp, 100) as consumer:
        had = await all_of(consumer, 100)
        await ack(had[:60])
        await until(lambda: consumer.statistics().timed_out == 40)


def test_an_allowance() -> None:
    allowance = Allowance()
    allowance.settle(500, 1000)
    allowance.limit(100, 1000)
    most = [allowance.most]
    for count in (399, 1, 800):
        allowance.settle(count, 1000)
        most.append(allowance.most)
    allowance.limit(allowance.settled, 1000)
    most.append(allowance.most)
    allowance.limit(allowance.settled, 1)
    most.append(allowance.most)
    assert most == [400, 400, 800, None, 1, None]
