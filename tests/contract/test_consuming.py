"""Consumers, by the library and over the network."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from contract.both import Both, order, orders
from engine.pulling import Clock
from milepost import (
    Checkpoint,
    ConsumerClosed,
    FilterError,
    Lost,
    Message,
    Milepost,
    MilepostError,
    NewMessage,
    Park,
    Retry,
    RetryLater,
    Route,
    Skip,
    UnknownSubscription,
    by_correlation,
)
from milepost.client.consumer import ClientConsumer as RemoteConsumer
from milepost.client.delivery import ClientDelivery as RemoteDelivery
from milepost.dispatch import State
from milepost.engine.consumers.consumer import Consumer
from milepost.engine.consumers.delivery import Delivery
from milepost.engine.operate.deliveries import DeliveryInfo
from patience import looked_at, within

AnyConsumer = Consumer | RemoteConsumer
AnyDelivery = Delivery | RemoteDelivery


async def take(consumer: AnyConsumer, count: int) -> list[Any]:
    """The next deliveries, so many."""
    async with asyncio.timeout(60):
        return [await anext(consumer) for _ in range(count)]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with within(60, lambda: looked_at(condition)):
        while not await condition():
            await asyncio.sleep(0.02)


async def states(both: Both) -> dict[int, tuple[State, str]]:
    found = both.manage("shipping").deliveries()
    return {delivery.position: (delivery.state, delivery.reason) async for delivery in found}


@pytest.fixture
async def shipping(both: Both) -> Both:
    """One with a subscription and a few orders."""
    await both.create_subscription("shipping", category="order", retry=Retry(delay=60))
    await orders(both, 6)
    return both


@asynccontextmanager
async def a_consumer(both: Both, **options: Any) -> AsyncIterator[AnyConsumer]:
    async with both.consumer("shipping", **options) as consumer:
        yield consumer


async def test_what_a_delivery_is(shipping: Both) -> None:
    async with a_consumer(shipping) as consumer:
        [delivery] = await take(consumer, 1)
        assert (delivery.position, delivery.attempt, delivery.route, delivery.replay) == (
            1,
            1,
            "everything",
            False,
        )
        assert (delivery.message.data, delivery.message.properties) == ({"n": 0}, {"n": 0})
        assert repr(delivery) == "Delivery(position=1, attempt=1)"
        assert (consumer.standby, consumer.closed) == (False, None)
        await delivery.ack()
        with pytest.raises(Lost, match="position 1 was settled before"):
            await delivery.ack()
        with pytest.raises(Lost):
            await delivery.extend(5)


async def test_each_way_to_settle(shipping: Both) -> None:
    async with a_consumer(shipping) as consumer:
        taken = await take(consumer, 6)
        await taken[0].ack()
        await taken[1].retry(after=60, reason="later")
        await taken[2].park("broken")
        await taken[3].skip("not wanted")
        await taken[4].retry(0, count=False)
        [again] = await take(consumer, 1)
        assert (again.position, again.attempt) == (5, 1)
        await again.ack()
        await taken[5].extend(60)
        await taken[5].ack()
        await asyncio.sleep(0)
        statistics = consumer.statistics()
        assert (statistics.acked, statistics.retried, statistics.parked, statistics.skipped) == (3, 2, 1, 1)
        assert (statistics.in_flight, statistics.delivered, statistics.consumer) == (0, 7, consumer.name)
    await until(lambda: _has(shipping, {2: (State.RETRYING, "later"), 3: (State.PARKED, "broken")}))


async def _has(both: Both, expected: dict[int, tuple[State, str]]) -> bool:
    return await states(both) == expected


@pytest.mark.parametrize("looks", [True, pytest.param(False, marks=pytest.mark.shard("faults"))])
async def test_one_that_hangs_costs_others_nothing(both: Both, looks: bool) -> None:
    """It has six times what stalls the subscription, should it fail, and settles none of it."""
    await both.create_subscription("shipping", timeout=4, stall_after=50, retry=Retry(delay=3600))
    await both.append("order-1", [order(n) for n in range(300)])
    async with a_consumer(both, capacity=300) as hanging:
        await until(lambda: _has_all(hanging, 300))
        if looks:
            # So long that its time begins anew.
            await asyncio.sleep(0.5)
            await hanging.next_batch(300)
        async with a_consumer(both) as other, asyncio.timeout(60):
            for _ in range(200):
                [delivery] = await take(other, 1)
                assert delivery.attempt == 1
                await delivery.ack()
        assert (await both.manage("shipping").info()).stalled is None


async def _has_all(consumer: AnyConsumer, count: int) -> bool:
    return consumer.statistics().in_flight == count


async def test_blocks(shipping: Both) -> None:
    raised: list[Exception | None] = [
        None,
        ValueError("no"),
        Park("broken"),
        Skip("no"),
        RetryLater(60, reason="r"),
    ]
    async with a_consumer(shipping) as consumer:
        for error in raised:
            [delivery] = await take(consumer, 1)
            async with delivery as message:
                assert isinstance(message, Message)
                if error is not None:
                    raise error
        [last] = await take(consumer, 1)
        async with last:
            await last.ack()
    expected = {2: (State.RETRYING, "ValueError: no"), 3: (State.PARKED, "broken"), 5: (State.RETRYING, "r")}
    await until(lambda: _has(shipping, expected))
    [failed] = [each async for each in shipping.manage("shipping").deliveries(reason="ValueError")]
    assert "Traceback" in failed.error


async def test_several_at_once(shipping: Both) -> None:
    async with a_consumer(shipping) as consumer:
        taken = await take(consumer, 6)
        await taken[0].ack()
        settled = await consumer.settle(ack=taken[:3], retry=[taken[3]], park=[taken[4]], reason="so", after=60)
        assert (settled.moved, settled.refused) == ((2, 3, 4, 5), (1,))
        assert (await consumer.settle(skip=taken[5:])).moved == (6,)
    await until(lambda: _has(shipping, {4: (State.RETRYING, "so"), 5: (State.PARKED, "so")}))


async def test_batches(shipping: Both) -> None:
    seen: list[int] = []
    async with a_consumer(shipping) as consumer, asyncio.timeout(60):
        async for each in consumer.batches(4):
            batch: list[Any] = [*each]
            assert 0 < len(batch) <= 4
            seen += [delivery.position for delivery in batch]
            await consumer.settle(ack=batch)
            if len(seen) == 6:
                await consumer.drain()
    assert seen == [1, 2, 3, 4, 5, 6]


async def test_a_filter_and_a_priority(shipping: Both) -> None:
    async with a_consumer(shipping, where="n >= 4", priority=10) as express:
        assert [each.position for each in await take(express, 2)] == [5, 6]
        async with a_consumer(shipping) as rest:
            assert [each.position for each in await take(rest, 4)] == [1, 2, 3, 4]
            await shipping.append("order-1", [order(7), order(1)])
            [first], [second] = await take(express, 1), await take(rest, 1)
            assert (first.route, first.position, second.position) == ("n >= 4", 7, 8)
            assert (express.statistics().delivered, rest.statistics().delivered) == (3, 5)


async def test_routes(shipping: Both) -> None:
    named, other = Route("n == 1", name="one", priority=5), Route("n > 3", capacity=1)
    async with a_consumer(shipping, routes=[named, other]) as consumer:
        taken = {each.position: each for each in await take(consumer, 2)}
        assert {position: each.route for position, each in taken.items()} == {2: "one", 5: "n > 3"}
        assert consumer.routes == (named, other)
        more = Route("n == 0")
        await consumer.add(more)
        [added] = await take(consumer, 1)
        assert (added.position, added.route) == (1, "n == 0")
        await consumer.remove(more)
        assert consumer.routes == (named, other)
        with pytest.raises(ValueError, match="no route"):
            await consumer.remove(more)
        await taken[5].ack()
        assert [each.position for each in await take(consumer, 1)] == [6]
        with pytest.raises(ValueError, match="several routes"):
            await consumer.configure(capacity=3)
        with pytest.raises(ValueError, match="routes say it all"):
            await consumer.configure(routes=[other], priority=3)


async def test_capacity(shipping: Both) -> None:
    await shipping.create_subscription("witness")
    async with a_consumer(shipping, capacity=2) as consumer:
        taken = await take(consumer, 2)
        # What would have been sent with them is there before an answer.
        await taken[0].extend(60)
        assert consumer.statistics().delivered == 2
        await taken[0].ack()
        await taken[1].ack()
        await take(consumer, 2)
        await consumer.configure(capacity=4)
        await take(consumer, 2)
        await consumer.configure(capacity=0)
        async with shipping.consumer("witness") as witness:
            await shipping.append("order-1", order(9))
            assert [each.position for each in await take(witness, 7)][-1] == 7
        assert consumer.statistics().delivered == 6
        await consumer.configure(where="n == 9", capacity=100)
        assert [each.position for each in await take(consumer, 1)] == [7]


async def test_draining(shipping: Both) -> None:
    async with a_consumer(shipping, capacity=2) as consumer:
        taken = await take(consumer, 2)
        await consumer.drain()
        rest = asyncio.create_task(anext(consumer, None))
        for delivery in taken:
            await delivery.ack()
        async with asyncio.timeout(60):
            assert await rest is None
        assert consumer.closed == "drained"
        await consumer.drain()
        with pytest.raises(ConsumerClosed) as raised:
            await consumer.configure(capacity=3)
        assert raised.value.reason == "drained"


async def test_one_that_is_deleted(shipping: Both) -> None:
    async with a_consumer(shipping, capacity=1) as consumer:
        [delivery] = await take(consumer, 1)
        deleting = asyncio.create_task(shipping.manage("shipping").delete())
        async with asyncio.timeout(60):
            with pytest.raises(ConsumerClosed) as raised:
                while True:
                    # It waits for what is open; what comes before it has begun is open too.
                    with suppress(Lost):
                        await delivery.ack()
                    delivery = await anext(consumer)
            await deleting
        assert (raised.value.reason, consumer.closed) == ("deleted", "deleted")


async def test_a_time_out(both: Both) -> None:
    await both.create_subscription("shipping", timeout=1, retry=Retry(delay=0))
    await orders(both, 1)
    async with a_consumer(both) as consumer:
        [first] = await take(consumer, 1)
        # Longer for the next, which is to be settled in time.
        await both.manage("shipping").update(timeout=60)
        [second] = await take(consumer, 1)
        assert second.attempt == 2
        with pytest.raises(Lost, match="timed out"):
            await first.ack()
        await second.extend(60)
        await second.ack()
        assert consumer.statistics().timed_out == 1


async def test_what_waits_for_its_user_does_not_time_out(both: Both) -> None:
    await both.create_subscription("shipping", timeout=1, retry=Retry(delay=0))
    await orders(both, 4, streams=4)
    async with a_consumer(both) as consumer:
        await take(consumer, 1)
        # Longer for what comes after, which is to be settled in time.
        await both.manage("shipping").update(timeout=60)
        # The time of all is over then, and only this one was looked at.
        async with asyncio.timeout(60):
            while not consumer.statistics().timed_out:
                await asyncio.sleep(0.02)
        seen: list[tuple[int, int]] = []
        for _ in range(4):
            [delivery] = await take(consumer, 1)
            await delivery.ack()
            seen.append((delivery.position, delivery.attempt))
    assert sorted(seen) == [(1, 2), (2, 1), (3, 1), (4, 1)]


async def test_what_was_settled_is_stored_when_the_block_has_ended(both: Both) -> None:
    """Also where others stay, and it would be written much later."""
    await both.create_subscription("shipping", checkpoint=Checkpoint(seconds=60))
    await orders(both, 3)
    async with a_consumer(both, capacity=0):
        async with a_consumer(both) as consumer:
            first, second, third = await take(consumer, 3)
            await consumer.settle(ack=[first, third], park=[second], reason="broken")
        assert await states(both) == {2: (State.PARKED, "broken")}
        assert (await both.manage("shipping").info()).lag.positions == 0


async def test_leaving_gives_back_and_counts_nothing(shipping: Both) -> None:
    async with a_consumer(shipping, capacity=3) as consumer:
        await take(consumer, 2)
    async with a_consumer(shipping) as consumer:
        assert [(each.position, each.attempt) for each in await take(consumer, 6)] == [(n, 1) for n in range(1, 7)]


async def test_an_error_counts_for_what_was_taken(both: Both) -> None:
    await both.create_subscription("shipping", retry=Retry(delay=0))
    await orders(both, 2)
    with pytest.raises(KeyError):
        async with a_consumer(both, capacity=2) as consumer:
            await take(consumer, 1)
            raise KeyError("mine")
    async with a_consumer(both) as consumer:
        taken = await take(consumer, 2)
        assert sorted((each.position, each.attempt) for each in taken) == [(1, 2), (2, 1)]


async def test_stopping(both: Both) -> None:
    await both.create_subscription("shipping", retry=Retry(delay=0))
    await orders(both, 2)
    async with a_consumer(both) as consumer:
        first, _ = await take(consumer, 2)
        await first.stop("enough")
        with pytest.raises(ConsumerClosed) as raised:
            await anext(consumer)
        assert raised.value.reason == "stopped"
    async with a_consumer(both) as consumer:
        taken = await take(consumer, 2)
        assert sorted((each.position, each.attempt) for each in taken) == [(1, 2), (2, 1)]


async def test_order_per_key(both: Both) -> None:
    await both.create_subscription("shipping", ordered_by="stream")
    await orders(both, 6, streams=2)
    async with a_consumer(both) as consumer:
        first, second = await take(consumer, 2)
        assert {first.position, second.position} == {1, 2}
        await second.extend(60)
        assert consumer.statistics().delivered == 2
        await second.ack()
        [third] = await take(consumer, 1)
        assert third.position == second.position + 2


async def test_too_many_consumers(both: Both) -> None:
    await both.create_subscription("shipping", max_consumers=1)
    async with a_consumer(both):
        with pytest.raises(ConsumerClosed) as raised:
            async with a_consumer(both):
                pass
        assert raised.value.reason == "too many consumers"


async def test_a_replay_is_marked(shipping: Both) -> None:
    async with a_consumer(shipping) as consumer:
        for delivery in await take(consumer, 6):
            await delivery.ack()
    await shipping.manage("shipping").caught_up(6, timeout=60)
    assert await shipping.manage("shipping").replay(0, 2) == 2
    async with a_consumer(shipping) as consumer:
        assert [(each.position, each.replay) for each in await take(consumer, 2)] == [(1, True), (2, True)]


async def test_changes_while_it_runs(shipping: Both) -> None:
    async with a_consumer(shipping) as consumer:
        await take(consumer, 6)
        await shipping.manage("shipping").update(where="n > 100")
        await shipping.append("order-1", [order(7), order(101)])
        assert [each.position for each in await take(consumer, 1)] == [8]


@pytest.mark.shard("variants", fast=["library-pause", "client-move"])
@pytest.mark.parametrize("action", ["pause", "move", "replay"])
async def test_what_nobody_has_begun_with_is_given_back_at_once(shipping: Both, action: str) -> None:
    managed = shipping.manage("shipping")
    async with a_consumer(shipping) as consumer:
        [begun] = await take(consumer, 1)

        async def arrived() -> bool:
            return consumer.in_flight == 6

        await until(arrived)
        acting = asyncio.create_task(getattr(managed, action)(*(() if action == "pause" else (0,))))

        async def alone() -> bool:
            return consumer.in_flight == 1

        await until(alone)
        await begun.ack()
        await acting
        await managed.resume()
        again = await take(consumer, 5)
        assert {each.attempt for each in again} == {1}
        assert {each.position for each in again} >= {2, 3, 4, 5}


async def test_what_an_operator_takes_back(shipping: Both) -> None:
    async with a_consumer(shipping) as consumer:
        first, *others = await take(consumer, 6)
        for delivery in others:
            await delivery.ack()
        await shipping.manage("shipping").pause(force=True)
        with pytest.raises(Lost):
            await first.ack()
        await shipping.manage("shipping").resume()
        [again] = await take(consumer, 1)
        assert (again.position, again.attempt) == (1, 1)
        await again.ack()


async def test_statistics_of_all_consumers(shipping: Both) -> None:
    async with a_consumer(shipping) as consumer:
        for delivery in await take(consumer, 6):
            await delivery.ack()

        async def told() -> bool:
            statistics = await shipping.manage("shipping").statistics()
            return statistics.acked == 6 and len(statistics.consumers) == 1

        await until(told)
        assert (await shipping.manage("shipping").info()).consumers == 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"where": "a ==="}, FilterError),
        ({"capacity": -1}, ValueError),
        ({"priority": "high"}, ValueError),
        ({"routes": []}, ValueError),
        ({"routes": [Route()], "where": "a"}, ValueError),
        ({"routes": ["a"]}, ValueError),
    ],
)
async def test_what_cannot_be_asked_for(both: Both, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        both.consumer("shipping", **options)


async def test_what_has_no_consumers(mp: Milepost, both: Both) -> None:
    @mp.subscription("invoices", category="order")
    async def invoice(message: Message[Any]) -> None: ...

    await mp.run_until_idle()
    with pytest.raises(UnknownSubscription) as raised:
        async with both.consumer("nothing"):
            pass
    assert raised.value.name == "default/nothing"
    with pytest.raises(MilepostError, match="handlers"):
        async with both.consumer("invoices"):
            pass
    consumer = both.consumer("nothing")
    with pytest.raises(RuntimeError, match="inside"):
        await consumer.drain()


class TestAnEmptyCorrelation:
    """It counts as none: what has it belongs to its stream, and not to all else that has it."""

    async def test_pinned(self, both: Both) -> None:
        await both.create_subscription("shipping", strategy="pinned_by_correlation")
        async with both.consumer("shipping") as first, both.consumer("shipping") as second:
            message = NewMessage("placed", metadata={"correlation_id": ""})
            await both.append_many({f"order-{n}": message for n in range(40)})

            async def all_are_out() -> bool:
                return first.in_flight + second.in_flight == 40

            await until(all_are_out)
            assert first.in_flight > 5
            assert second.in_flight > 5

    async def test_in_order(self, both: Both) -> None:
        await both.create_subscription("shipping", ordered_by=by_correlation)
        message = NewMessage("placed", metadata={"correlation_id": ""})
        await both.append_many({"order-1": [message, message], "order-2": message})
        async with both.consumer("shipping") as consumer:
            taken = await take(consumer, 2)
            assert sorted(each.message.stream for each in taken) == ["order-1", "order-2"]
            [one] = [each for each in taken if each.message.stream == "order-1"]
            await one.ack()
            [next_one] = await take(consumer, 1)
            assert (next_one.message.stream, next_one.message.version) == ("order-1", 2)


@dataclass
class Placed:
    """The first version of it."""

    n: int


class TestNewerVersions:
    """A payload of a newer version than a consumer knows waits, uncounted, for one that knows it."""

    @pytest.fixture
    async def shipping(self, both: Both) -> Both:
        """One message of the second version, for consumers that know the first."""
        both.message("order.placed")(Placed)
        await both.create_subscription("shipping", retry=Retry(attempts=1))
        await both.append("order-1", NewMessage("order.placed", {"n": 1}, metadata={"schema_version": 2}))
        return both

    async def look(self, both: Both) -> DeliveryInfo:
        """Take it and read its payload; return what is stored of it then."""
        async with both.consumer("shipping") as consumer:
            delivery: Any = await anext(consumer)
            async with delivery as message:
                _ = message.data
        [stored] = [each async for each in both.manage("shipping").deliveries()]
        return stored

    async def test_it_waits_for_another_consumer(self, shipping: Both, mp: Milepost) -> None:
        stored = await self.look(shipping)
        assert (stored.state, stored.attempts, stored.total) == (State.RETRYING, 0, 0)
        await Clock(mp).advance(10)
        async with shipping.consumer("shipping") as consumer:
            # Its first attempt, by somebody who knows it.
            again: Any = await anext(consumer)
            assert (again.attempt, again.message.raw) == (1, '{"n": 1}')
            await again.ack()
        assert await states(shipping) == {}

    async def test_it_is_parked_with_that_reason_after_ten_minutes(self, shipping: Both, mp: Milepost) -> None:
        clock = Clock(mp)
        assert (await self.look(shipping)).state is State.RETRYING
        await clock.advance(590)
        assert (await self.look(shipping)).state is State.RETRYING
        await clock.advance(10)
        stored = await self.look(shipping)
        words = "data: Message('order.placed', 'order-1' 1, position 1) has version 2, and this program knows 1"
        assert (stored.state, stored.attempts, stored.reason) == (State.PARKED, 0, words)
