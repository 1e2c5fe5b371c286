"""Order per key holds with every strategy; and what each strategy does."""

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from engine.consuming.taking import ack, has_looked, is_dry, orders, take, taking, until
from milepost import Milepost, NewMessage, Retry, by_correlation, by_property

STRATEGIES = ("round_robin", "dispatch_to_single", "pinned", "pinned_by_correlation")


@pytest.mark.shard("variants", fast=["round_robin"])
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_while_a_message_of_a_key_is_unsettled_no_later_one_is_handed_out(
    mp: Milepost, strategy: str
) -> None:
    await mp.create_subscription("shipping", strategy=strategy, ordered_by="stream", retry=Retry(delay=0.01))
    await orders(mp, 200, streams=7)
    open_: set[str] = set()
    seen: dict[str, list[int]] = defaultdict(list)

    async def handle(delivery: Any) -> None:
        stream, number = delivery.message.stream, delivery.message.data["n"]
        assert stream not in open_, "two of a stream are out"
        open_.add(stream)
        await asyncio.sleep(0)
        open_.discard(stream)
        if number % 9 == 0 and delivery.attempt == 1:
            await delivery.retry()
        else:
            seen[stream].append(number)
            await delivery.ack()

    async with (
        taking(mp, "shipping", handle, capacity=5) as first,
        taking(mp, "shipping", handle, capacity=5) as second,
        taking(mp, "shipping", handle, capacity=5) as third,
    ):
        await until(lambda: sum(map(len, seen.values())) == 200)
        assert first.seen or second.seen or third.seen
    assert all(numbers == sorted(numbers) for numbers in seen.values())


async def test_a_failed_message_holds_its_key_and_no_other(mp: Milepost) -> None:
    await mp.create_subscription("shipping", ordered_by=by_property("customer"), retry=Retry(delay=60))
    await mp.append("order-1", [_order(1), _order(2), _order(1)])
    async with mp.consumer("shipping") as consumer:
        first, other = await take(consumer, 2)
        assert (first.position, other.position) == (1, 2)
        await first.retry()
        await other.ack()
        assert await is_dry(consumer)
        await mp.manage("shipping").retry([1])
        assert await ack(await take(consumer, 1)) == [1]
        assert await ack(await take(consumer, 1)) == [3]


def _order(customer: int) -> NewMessage:
    return NewMessage("placed", properties={"customer": customer})


@pytest.mark.shard("variants", fast=["block"])
@pytest.mark.parametrize("on_park", ["block", "continue"])
async def test_a_parked_message_holds_its_key_or_lets_it_go_on(mp: Milepost, on_park: str) -> None:
    await mp.create_subscription("shipping", ordered_by="stream", on_park=on_park)
    await orders(mp, 2, streams=1)
    async with mp.consumer("shipping") as consumer:
        await (await take(consumer, 1))[0].park("odd")
        if on_park == "continue":
            assert await ack(await take(consumer, 1)) == [2]
            return
        assert await is_dry(consumer)
        await mp.manage("shipping").skip([1])
        assert await ack(await take(consumer, 1)) == [2]


async def test_by_correlation(mp: Milepost) -> None:
    await mp.create_subscription("shipping", ordered_by=by_correlation)
    for n, correlation in enumerate(("a", "b", "a")):
        message = NewMessage("placed", metadata={"correlation_id": correlation})
        await mp.append(f"order-{n}", message)
    async with mp.consumer("shipping") as consumer:
        first, second = await take(consumer, 2)
        assert (first.position, second.position) == (1, 2)
        assert await is_dry(consumer)
        await first.ack()
        assert await ack(await take(consumer, 1)) == [3]


class TestStrategies:
    async def test_round_robin_in_the_order_in_which_they_came(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping") as first, mp.consumer("shipping") as second:
            await orders(mp, 6)
            assert await ack(await take(first, 3)) == [1, 3, 5]
            assert await ack(await take(second, 3)) == [2, 4, 6]

    async def test_a_full_one_is_passed_over(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping", capacity=1) as first, mp.consumer("shipping") as second:
            await orders(mp, 5)
            assert [each.position for each in await take(first, 1)] == [1]
            assert await ack(await take(second, 4)) == [2, 3, 4, 5]

    async def test_to_a_single_one_until_it_is_full(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", strategy="dispatch_to_single")
        async with mp.consumer("shipping", capacity=3) as first, mp.consumer("shipping") as second:
            await orders(mp, 5)
            assert [each.position for each in await take(first, 3)] == [1, 2, 3]
            assert [each.position for each in await take(second, 2)] == [4, 5]

    async def test_pinned_keeps_a_stream_with_one_consumer(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", strategy="pinned")
        owners: dict[str, set[str]] = defaultdict(set)

        async def note(delivery: Any) -> None:
            owners[delivery.message.stream].add(delivery.claim.consumer)
            await delivery.ack()

        async with taking(mp, "shipping", note) as first, taking(mp, "shipping", note) as second:
            await orders(mp, 100, streams=20)
            await until(lambda: len(first.seen) + len(second.seen) == 100)
            assert all(len(names) == 1 for names in owners.values())
            assert len({name for names in owners.values() for name in names}) == 2

    async def test_pinned_a_full_owner_holds_up_nobody_else(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", strategy="pinned")
        async with mp.consumer("shipping", capacity=1) as first, mp.consumer("shipping", capacity=1) as second:
            await orders(mp, 40, streams=20)
            await take(first, 1)
            await ack(await take(second, 1))
            seen = 2
            await has_looked(second)
            while had := second.at_hand(1):
                seen += len(await ack(had))
                await has_looked(second)
            # All streams of the second went on, while those of the first wait.
            assert seen < 40
            assert first.statistics().in_flight == 1

    async def test_pinned_by_correlation(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", strategy="pinned_by_correlation")
        owners: dict[str, set[str]] = defaultdict(set)

        async def note(delivery: Any) -> None:
            owners[str(delivery.message.metadata.get("correlation_id"))].add(delivery.claim.consumer)
            await delivery.ack()

        async with taking(mp, "shipping", note) as first, taking(mp, "shipping", note) as second:
            for n in range(60):
                message = NewMessage("placed", metadata={"correlation_id": f"c{n % 12}"})
                await mp.append(f"order-{n}", message)
            await until(lambda: len(first.seen) + len(second.seen) == 60)
            assert all(len(names) == 1 for names in owners.values())
            assert len({name for names in owners.values() for name in names}) == 2

    async def test_a_leavers_buckets_go_to_the_others(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", strategy="pinned")
        async with taking(mp, "shipping") as staying:
            async with taking(mp, "shipping") as leaving:
                await orders(mp, 40, streams=20)
                await until(lambda: len(staying.seen) + len(leaving.seen) == 40)
                assert leaving.seen
            before = len(staying.seen)
            await orders(mp, 20, streams=20)
            await staying.until(before + 20)
