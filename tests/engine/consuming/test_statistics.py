"""Statistics of consumers and subscriptions: exact, over fixed windows, and unchanged by being read."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from engine.consuming.taking import ack, orders, take, until
from milepost import Message, Milepost, MilepostError, Retry
from milepost.engine.observe import statistics
from milepost.engine.observe.statistics import DeliveryCounters, SubscriptionStatistics
from support import MakeMilepost


class Seconds:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    clock = Seconds()
    monkeypatch.setattr(statistics, "monotonic", clock)
    return clock


@pytest.fixture(autouse=True)
def owners_tell_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Owners do that every few seconds, which no test has to wait for."""
    monkeypatch.setattr("milepost.engine.consumers.host.CONSUMER_REPORT_SECONDS", 0.05)


class TestWindows:
    """Rates are of whole seconds that have passed, so that it does not matter when one looks."""

    def test_of_the_last_second_and_of_the_last_minute(self, seconds: Seconds) -> None:
        numbers = DeliveryCounters()
        seconds.now = 1000.9
        numbers.settled("ack", [0.1] * 30)
        assert (numbers.figures(0).rate, numbers.figures(0).rate_minute) == (0, 0)
        for now in (1001.0, 1001.5, 1001.99):
            seconds.now = now
            assert (numbers.figures(0).rate, numbers.figures(0).rate_minute) == (30, 0.5)
        seconds.now = 1002.0
        assert (numbers.figures(0).rate, numbers.figures(0).rate_minute) == (0, 0.5)
        seconds.now = 1060.99
        assert numbers.figures(0).rate_minute == 0.5
        seconds.now = 1061.0
        assert numbers.figures(0).rate_minute == 0

    def test_every_second_of_a_minute_counts(self, seconds: Seconds) -> None:
        numbers = DeliveryCounters()
        for second in range(200):
            seconds.now = 1000.0 + second
            numbers.settled("ack", [0.1] * second)
        seconds.now += 1
        figures = numbers.figures(0)
        assert (figures.rate, figures.rate_minute) == (199, sum(range(140, 200)) / 60)
        assert figures.acked == sum(range(200))

    def test_percentiles_of_the_last_thousand(self) -> None:
        numbers = DeliveryCounters()
        assert numbers.figures(0).latency_50 is None
        numbers.settled("ack", [9.0] * 5000)
        numbers.settled("retry", [number / 1000 for number in range(1000)])
        figures = numbers.figures(0)
        assert (figures.latency_50, figures.latency_90, figures.latency_99) == (0.5, 0.9, 0.99)


async def told(mp: Milepost, **wanted: Any) -> SubscriptionStatistics:
    """What the owner told, once that is so."""
    found: list[SubscriptionStatistics] = []

    async def is_so() -> bool:
        found.append(await mp.manage("shipping").statistics())
        return all(getattr(found[-1], name) == value for name, value in wanted.items())

    await until(is_so)
    return found[-1]


async def test_of_a_consumer(mp: Milepost) -> None:
    await mp.create_subscription("shipping", retry=Retry(attempts=3, delay=0, jitter=0), timeout=60)
    await orders(mp, 6)
    before = datetime.now(UTC)
    async with mp.consumer("shipping") as consumer:
        one, two, three, four, five, late = await take(consumer, 6)
        assert (consumer.in_flight, consumer.statistics().in_flight, consumer.statistics().delivered) == (6, 6, 6)
        await late.extend(60)
        await ack([one, two])
        # In the same step of the loop.
        assert (consumer.statistics().acked, consumer.in_flight) == (2, 4)
        await three.skip("a test")
        await four.park("no address")
        await five.retry(reason="the carrier is down")
        [again] = await take(consumer, 1)
        assert (again.position, again.attempt) == (5, 2)
        figures = consumer.statistics()
        assert (figures.acked, figures.skipped, figures.parked, figures.retried) == (2, 1, 1, 1)
        assert (figures.in_flight, figures.delivered, figures.redelivered) == (2, 7, 1)
        assert (figures.timed_out, figures.last_error) == (0, "the carrier is down")
        assert figures.last_error_at is not None
        assert before <= figures.last_error_at
        await again.extend(0.01)
        [again] = await take(consumer, 1)
        figures = consumer.statistics()
        assert (again.position, again.attempt, figures.timed_out, figures.last_error) == (5, 3, 1, "timed out")
        assert figures.latency_50 is not None
        assert figures.consumer == consumer.name


async def test_reading_changes_nothing(mp: Milepost) -> None:
    await mp.create_subscription("shipping")
    await orders(mp, 5)
    async with mp.consumer("shipping") as consumer:
        deliveries = await take(consumer, 5)
        await ack(deliveries[:3])
        await asyncio.sleep(0)
        still = [consumer.statistics() for _ in range(100)]
        assert {msgspec.structs.replace(each, rate=0, rate_minute=0) for each in still} == {
            msgspec.structs.replace(still[0], rate=0, rate_minute=0)
        }
        first = await told(mp, acked=3, in_flight=2)
        for _ in range(20):
            assert (await told(mp)).delivered == first.delivered


async def test_of_a_subscription_from_another_process(mp: Milepost, make_mp: MakeMilepost) -> None:
    """All consumers together, those that left included, and each that is there."""
    await mp.create_subscription("shipping")
    await orders(mp, 4)
    async with make_mp() as other, mp.consumer("shipping", where="n < 3") as first:
        async with mp.consumer("shipping", where="n < 3", capacity=0) as second:
            deliveries = await take(first, 3)
            await deliveries[0].ack()
            await deliveries[1].park("odd")
            seen = await told(other, acked=1, parked=1, in_flight=1, unrouted=1)
            assert {each.consumer: each.in_flight for each in seen.consumers} == {first.name: 1, second.name: 0}
            assert (seen.last_error, seen.delivered) == ("odd", 3)
            assert seen.owner is not None
            assert seen.at is not None
            assert seen.oldest_unrouted is not None
            assert seen.oldest_unrouted.position == 4
            assert seen.oldest_unrouted.age is not None
            assert 0 <= seen.oldest_unrouted.age < 60
            await first.__aexit__(None, None, None)
            after = await told(other, in_flight=0)
            assert (after.acked, [each.consumer for each in after.consumers]) == (1, [second.name])
    gone = await told(mp, owner=None)
    assert (gone.consumers, gone.in_flight, gone.unrouted) == ((), 0, 1)


async def test_attempts_and_times_of_each_delivery(mp: Milepost) -> None:
    await mp.create_subscription("shipping", retry=Retry(delay=60))
    await orders(mp, 1)
    async with mp.consumer("shipping") as consumer:
        await (await take(consumer, 1))[0].retry(reason="the carrier is down")
        await told(mp, retried=1)
    [row] = [each async for each in mp.manage("shipping").deliveries()]
    assert (row.attempts, row.total, row.reason, row.consumer) == (1, 1, "the carrier is down", consumer.name)
    assert row.due is not None
    assert row.due > row.since


async def test_with_handlers_there_are_none(mp: Milepost, make_mp: MakeMilepost) -> None:
    program = make_mp()

    @program.subscription("invoices")
    async def handle(message: Message[Any]) -> None: ...

    await program.run_until_idle()
    with pytest.raises(MilepostError, match="has handlers, not consumers"):
        await mp.manage("invoices").statistics()
