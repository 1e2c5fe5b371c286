"""Consumers that are late: what they have goes to others, and they get as much as they manage."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from engine.consuming.taking import PATIENCE, Taker, ack, orders, pass_time, taking, until
from milepost import Lost, Milepost, NewMessage, Retry, Route
from milepost.engine.consumers import consumer as allowing
from milepost.engine.consumers.consumer import TOLERATED_LATE_DELIVERIES, AdaptiveCapacity, Consumer
from milepost.engine.consumers.delivery import Delivery
from milepost.engine.consumers.routes import ConsumerRoutes
from patience import within

TIMEOUT = 600.0
"""Seconds that no test waits for: whoever is late in one, is so because the test moves the time."""

NEVER_DUE = Retry(delay=10**8, max_delay=10**8, jitter=0)


async def begin(mp: Milepost, count: int, **options: Any) -> AbstractAsyncContextManager[Consumer]:
    """A subscription with so many messages, which is stalled by 50 failures, and a consumer for all of them."""
    await mp.create_subscription("shipping", timeout=TIMEOUT, stall_after=50, retry=NEVER_DUE, **options)
    await mp.append("order-1", [NewMessage("order.placed") for _ in range(count)])
    return mp.consumer("shipping", capacity=count)


async def all_of(consumer: Consumer, count: int) -> list[Delivery]:
    """What it has, once that is so many; it begins with all of it."""
    await until(lambda: consumer.in_flight == count)
    return consumer.at_hand(count)


def is_late(consumer: Consumer) -> None:
    """What it has is overdue now, but for what was given more time."""
    pass_time(consumer, TIMEOUT + 1)


async def until_alone_late(hanging: Consumer, other: Taker, count: int) -> None:
    """Waits until the other one saw so many, while one that has room for one is late with each that it gets."""
    async with within(PATIENCE, lambda: f"{len(other.seen)}, wanted {count}"):
        while len(other.seen) < count:
            if hanging.in_flight and not other.consumer.in_flight:
                is_late(hanging)
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    "strategy", ["pinned", pytest.param("pinned_by_correlation", marks=pytest.mark.shard("faults"))]
)
class TestPinned:
    async def streams(self, mp: Milepost, count: int, of: int) -> None:
        await mp.append_many({f"order-{n}": [NewMessage("order.placed")] * of for n in range(count)})

    async def test_one_that_hangs_costs_others_nothing(self, mp: Milepost, strategy: str) -> None:
        async with await begin(mp, 100, strategy=strategy, window=50) as hanging:
            await all_of(hanging, 100)
            is_late(hanging)
            async with taking(mp, "shipping") as other:
                await self.streams(mp, 50, of=10)
                # But for what it was late with, which is tried again much later.
                await until_alone_late(hanging, other, 600 - TOLERATED_LATE_DELIVERIES)
                await self.streams(mp, 50, of=10)
                await until_alone_late(hanging, other, 1100 - TOLERATED_LATE_DELIVERIES)
                assert set(other.attempts) == {1}
            assert (await mp.manage("shipping").info()).stalled is None

    async def test_one_that_is_slow_costs_others_nothing(self, mp: Milepost, strategy: str) -> None:
        """It is not late, since it has few: what waits for it fills the window."""
        await mp.create_subscription("shipping", strategy=strategy, window=50, timeout=3600)
        async with mp.consumer("shipping", capacity=5) as slow, taking(mp, "shipping") as other:
            await self.streams(mp, 50, of=10)
            await until(lambda: slow.in_flight == 5)
            # But for a window of what waits.
            await other.until(500 - 5 - 50)
            await self.streams(mp, 50, of=1)
            await other.until(550 - 5 - 50)

    async def test_one_that_keeps_up_again_has_its_share(self, mp: Milepost, strategy: str) -> None:
        async with await begin(mp, 40, strategy=strategy) as consumer, taking(mp, "shipping") as other:
            await self.streams(mp, 50, of=4)
            await all_of(consumer, 40)
            is_late(consumer)
            await until(lambda: consumer.is_limited)
            await other.until(200 - TOLERATED_LATE_DELIVERIES)
            again = Taker(consumer)
            try:
                async with asyncio.timeout(PATIENCE):
                    while consumer.is_limited:
                        await self.streams(mp, 50, of=1)
                        await until(lambda: self.has_come(mp))
                rounds = []
                for _ in range(2):
                    head = await mp.head()
                    await self.streams(mp, 50, of=1)
                    await until(lambda: self.has_come(mp))
                    rounds.append({position - head for position in again.seen if position > head})
                # Each stream stays with it.
                assert rounds[0] == rounds[1]
                assert 15 <= len(rounds[0]) <= 35
            finally:
                await again.stop()

    async def has_come(self, mp: Milepost) -> bool:
        info = await mp.manage("shipping").info()
        return not info.lag.positions


class TestAConsumerThatHangs:
    async def test_costs_others_nothing(self, mp: Milepost) -> None:
        async with await begin(mp, 300) as hanging:
            await all_of(hanging, 300)
            is_late(hanging)
            async with taking(mp, "shipping") as other:
                await other.until(299 - TOLERATED_LATE_DELIVERIES)
                assert set(other.attempts) == {1}
                await orders(mp, 10)
                # It has room for one, which comes in turn.
                await other.until(309 - TOLERATED_LATE_DELIVERIES)
            assert hanging.statistics().timed_out == TOLERATED_LATE_DELIVERIES
            info = await mp.manage("shipping").info()
            assert (info.stalled, info.retrying) == (None, TOLERATED_LATE_DELIVERIES)

    async def test_also_when_it_looks_at_nothing(self, mp: Milepost) -> None:
        async with await begin(mp, 300) as hanging:
            await until(lambda: hanging.in_flight == 300)
            is_late(hanging)
            async with taking(mp, "shipping") as other:
                # It has room for one, which comes in turn.
                await other.until(299)
                assert set(other.attempts) == {1}
            assert hanging.statistics().timed_out == 0

    async def test_gets_more_by_what_it_settles(self, mp: Milepost) -> None:
        async with await begin(mp, 100 + TOLERATED_LATE_DELIVERIES) as consumer:
            await all_of(consumer, 100 + TOLERATED_LATE_DELIVERIES)
            is_late(consumer)
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
            is_late(consumer)
            await until(lambda: consumer.statistics().timed_out == TOLERATED_LATE_DELIVERIES)
            settled = await consumer.settle(ack=had)
            assert settled.moved == ()
        assert f"{consumer.name} was late: 30 of what it has go to others" in caplog.text


async def test_what_was_extended_stays(mp: Milepost) -> None:
    async with await begin(mp, 50) as consumer:
        had = await all_of(consumer, 50)
        await had[0].extend(3600)
        await had[-1].extend(3600)
        is_late(consumer)
        await until(lambda: consumer.statistics().timed_out == TOLERATED_LATE_DELIVERIES)
        await ack([had[0], had[-1]])
        with pytest.raises(Lost):
            await had[-2].ack()


async def test_one_that_goes_on_is_late_with_each(mp: Milepost) -> None:
    """It settled more than it has left, and still says something: each is an attempt, as it is its user's time."""
    async with await begin(mp, 100) as consumer:
        had = await all_of(consumer, 100)
        await ack(had[:60])
        await had[60].extend(3600)
        is_late(consumer)
        await until(lambda: consumer.statistics().timed_out == 39)


async def test_what_nobody_has_begun_with_takes_nothing_away(mp: Milepost) -> None:
    """What waits for a busy consumer goes to others; what that is busy with is its own, and it gets no more."""
    async with await begin(mp, 100) as consumer:
        await until(lambda: consumer.in_flight == 100)
        had = consumer.at_hand(40)
        for delivery in had:
            await delivery.extend(1.5 * TIMEOUT)
        is_late(consumer)
        await until(lambda: consumer.in_flight == 40)
        assert (await consumer.settle(ack=had)).refused == ()
        assert consumer.numbers.delivered == 100


class TestRoutes:
    async def test_share_what_it_may_have(self, mp: Milepost) -> None:
        """Each has room for one at least, or nobody would see that it is there again."""
        await mp.create_subscription("shipping", timeout=TIMEOUT, stall_after=50, retry=NEVER_DUE)
        await orders(mp, 100)
        routes = [Route(f"n >= {low} and n < {low + 25}", capacity=25) for low in range(0, 100, 25)]
        async with mp.consumer("shipping", routes=routes) as consumer:
            await all_of(consumer, 100)
            is_late(consumer)
            await until(lambda: consumer.statistics().timed_out == TOLERATED_LATE_DELIVERIES)
            await until(lambda: consumer.in_flight == len(routes))

    def test_have_each_its_part(self) -> None:
        routing = ConsumerRoutes(
            [Route(f"n == {n}", capacity=capacity) for n, capacity in enumerate((0, 1, 25, 25))]
        )
        assert [route.capacity for route in routing.named(20)] == [0, 1, 5, 5]
        assert [route.capacity for route in routing.named(None)] == [0, 1, 25, 25]

    async def test_that_change_meanwhile(self, mp: Milepost) -> None:
        async with await begin(mp, 100) as consumer:
            await all_of(consumer, 100)
            await consumer.configure(capacity=0)
            is_late(consumer)
            await until(lambda: consumer.statistics().timed_out == TOLERATED_LATE_DELIVERIES)
            await consumer.configure(capacity=100)
            await until(lambda: consumer.in_flight == 1)


class TestAllowance:
    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        clock = [0.0]
        monkeypatch.setattr(allowing, "monotonic", lambda: clock[0])
        return clock

    def test_is_what_was_settled_meanwhile(self, clock: list[float]) -> None:
        allowance = AdaptiveCapacity()
        allowance.settle(500, 1000)
        clock[0] = 15
        allowance.limit(100, timeout=30)
        most = [allowance.most]
        for count in (399, 1, 800):
            allowance.settle(count, 1000)
            most.append(allowance.most)
        assert most == [400, 400, 800, None]

    def test_is_one_for_who_hangs(self, clock: list[float]) -> None:
        allowance = AdaptiveCapacity()
        allowance.settle(500, 1000)
        clock[0] = 15.1
        allowance.limit(100, timeout=30)
        assert allowance.most == 1

    def test_is_not_more_for_being_late_again(self, clock: list[float]) -> None:
        allowance = AdaptiveCapacity()
        allowance.settle(500, 1000)
        allowance.limit(490, timeout=30)
        allowance.limit(0, timeout=30)
        assert allowance.most == 10
