"""What a consumer can say of a delivery, and what becomes of it."""

import asyncio
import logging
from typing import Any

import pytest

from engine.consuming.taking import ack, is_dry, orders, pass_time, take, taking, until
from milepost import Lost, Milepost, NewMessage, Park, Retry, RetryLater, Skip

AT_ONCE = Retry(delay=0, jitter=0)


async def states(mp: Milepost, name: str = "shipping") -> dict[int, str]:
    """The states of all rows, by position."""
    return {each.position: str(each.state) async for each in mp.manage(name).deliveries()}


async def test_a_delivery_says_what_it_is(mp: Milepost) -> None:
    await mp.create_subscription("shipping")
    await mp.append("order-1", NewMessage("order.placed", {"n": 1}, properties={"n": 1}))
    async with mp.consumer("shipping", where="n == 1") as consumer:
        [delivery] = await take(consumer, 1)
        assert (delivery.position, delivery.attempt, delivery.route) == (1, 1, "n == 1")
        assert (delivery.message.stream, delivery.message.data, delivery.replay) == ("order-1", {"n": 1}, False)
        assert repr(delivery) == "Delivery(position=1, attempt=1)"


async def test_what_is_acked_is_done(mp: Milepost) -> None:
    await mp.create_subscription("shipping")
    await orders(mp, 5)
    async with mp.consumer("shipping") as consumer:
        assert await ack(await take(consumer, 5)) == [1, 2, 3, 4, 5]
    info = await mp.manage("shipping").info()
    assert (info.lag.positions, await states(mp)) == (0, {})
    async with mp.consumer("shipping") as consumer:
        assert await is_dry(consumer)


async def test_retry_comes_again_as_the_policy_says(mp: Milepost) -> None:
    await mp.create_subscription("shipping", retry=Retry(attempts=3, delay=0.3, factor=1, jitter=0))
    await orders(mp, 1)
    async with mp.consumer("shipping") as consumer:
        for attempt in (1, 2, 3):
            [delivery] = await take(consumer, 1)
            assert delivery.attempt == attempt
            await delivery.retry(reason="the printer is out of paper")
            if attempt < 3:
                await until(lambda: _has_failed(mp, attempt))  # noqa: B023
                [row] = [each async for each in mp.manage("shipping").deliveries()]
                assert row.due is not None
                assert (row.due - row.since).total_seconds() == pytest.approx(0.3, abs=1e-5)
        await until(lambda: _is(mp, {1: "parked"}))
    [parked] = [each async for each in mp.manage("shipping").deliveries(state="parked")]
    assert (parked.reason, parked.attempts, parked.consumer) == ("the printer is out of paper", 3, consumer.name)


async def _has_failed(mp: Milepost, attempts: int) -> bool:
    return [each.attempts async for each in mp.manage("shipping").deliveries()] == [attempts]


async def test_retry_after_some_seconds(mp: Milepost) -> None:
    await mp.create_subscription("shipping", retry=Retry(delay=60))
    await orders(mp, 1)
    async with mp.consumer("shipping") as consumer:
        await (await take(consumer, 1))[0].retry(after=0.1)
        assert [delivery.attempt for delivery in await take(consumer, 1)] == [2]


async def test_retry_that_is_not_counted(mp: Milepost) -> None:
    await mp.create_subscription("shipping", retry=Retry(attempts=1))
    await orders(mp, 1)
    async with mp.consumer("shipping") as consumer:
        for _ in range(3):
            [delivery] = await take(consumer, 1)
            assert delivery.attempt == 1
            await delivery.retry(count=False)


async def _is(mp: Milepost, rows: dict[int, str]) -> bool:
    return await states(mp) == rows


async def test_park_and_skip(mp: Milepost) -> None:
    await mp.create_subscription("shipping")
    await orders(mp, 3)
    async with mp.consumer("shipping") as consumer:
        first, second, third = await take(consumer, 3)
        await first.park("no such address")
        await second.skip("a test order")
        await third.ack()
        await until(lambda: _is(mp, {1: "parked"}))
        await until(lambda: _has_passed(mp))
    [parked] = [each async for each in mp.manage("shipping").deliveries()]
    assert (parked.reason, parked.attempts, parked.error) == ("no such address", 1, "")
    assert parked.message is not None
    assert parked.message.data == {"n": 0}


async def _has_passed(mp: Milepost) -> bool:
    return not (await mp.manage("shipping").info()).lag.positions


async def test_stop_tries_the_message_again_and_ends_the_consumer(mp: Milepost) -> None:
    await mp.create_subscription("shipping", retry=AT_ONCE)
    await orders(mp, 3)
    async with mp.consumer("shipping") as stopping:
        first, _ = await take(stopping, 2)
        await first.stop("out of memory")
        async with mp.consumer("shipping") as other:
            found = {delivery.position: delivery.attempt for delivery in await take(other, 3)}
            assert found == {1: 2, 2: 1, 3: 1}
        assert stopping.closed == "stopped"


async def test_extend_gives_more_time(mp: Milepost) -> None:
    await mp.create_subscription("shipping", timeout=600, retry=Retry(delay=3600))
    await orders(mp, 2)
    async with mp.consumer("shipping") as consumer:
        first, second = await take(consumer, 2)
        await first.extend(3600)
        pass_time(consumer, 601)
        await until(lambda: _is(mp, {2: "retrying"}))
        await first.ack()
        # Since that was written, its process goes by the database's time again.
        pass_time(consumer, 601)
        with pytest.raises(Lost, match="timed out: it may be with another consumer by now"):
            await second.ack()
        pass_time(consumer, 601)
        with pytest.raises(Lost, match="timed out"):
            await second.extend(60)


@pytest.mark.shard("variants", fast=["0", "nan"])
@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
async def test_extend_by_nothing(mp: Milepost, seconds: float) -> None:
    await mp.create_subscription("shipping")
    await orders(mp, 1)
    async with mp.consumer("shipping") as consumer:
        with pytest.raises(ValueError, match="more than 0, is wanted|a hundred years, are wanted"):
            await (await take(consumer, 1))[0].extend(seconds)


async def test_what_was_settled_is_settled(mp: Milepost) -> None:
    await mp.create_subscription("shipping", retry=AT_ONCE)
    await orders(mp, 1)
    async with mp.consumer("shipping") as consumer:
        [delivery] = await take(consumer, 1)
        await delivery.ack()
        for settle in (delivery.ack, delivery.retry, delivery.park, delivery.skip):
            with pytest.raises(Lost, match="position 1 was settled before"):
                await settle()
        assert await is_dry(consumer)
    assert await states(mp) == {}


class TestSeveral:
    async def test_each_in_its_way(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", retry=Retry(delay=60))
        await orders(mp, 8)
        async with mp.consumer("shipping") as consumer:
            given = await take(consumer, 8)
            settled = await consumer.settle(
                ack=given[:5], retry=given[5:6], park=given[6:7], skip=given[7:], reason="several"
            )
            assert (settled.moved, settled.refused) == ((1, 2, 3, 4, 5, 6, 7, 8), ())
            await until(lambda: _is(mp, {6: "retrying", 7: "parked"}))
        rows = [each async for each in mp.manage("shipping").deliveries()]
        assert [each.reason for each in rows] == ["several", "several"]

    async def test_what_is_refused_is_said_and_the_others_are_settled(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        await orders(mp, 3)
        async with mp.consumer("shipping") as consumer:
            given = await take(consumer, 3)
            await given[1].ack()
            settled = await consumer.settle(ack=[*given, given[0]], retry=[given[2]])
            assert (settled.moved, settled.refused) == ((1, 3), (2, 3))
            await until(lambda: _has_passed(mp))

    async def test_nothing(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping") as consumer:
            settled = await consumer.settle()
            assert (settled.moved, settled.refused) == ((), ())

    async def test_in_batches_as_they_come(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        await orders(mp, 25)
        sizes: list[int] = []
        async with mp.consumer("shipping") as consumer:
            async with asyncio.timeout(40):
                async for batch in consumer.batches(10):
                    sizes.append(len(batch))
                    await consumer.settle(ack=batch)
                    if sum(sizes) == 25:
                        await consumer.drain()
        assert max(sizes) <= 10
        await until(lambda: _has_passed(mp))

    async def test_batches_of_none(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping") as consumer:
            with pytest.raises(ValueError, match="limit"):
                await anext(consumer.batches(0))


class TestBlock:
    async def test_the_end_of_the_block_is_an_ack(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        await orders(mp, 1)
        async with mp.consumer("shipping") as consumer:
            async with (await take(consumer, 1))[0] as message:
                assert message.data == {"n": 0}
            await until(lambda: _has_passed(mp))
        assert await states(mp) == {}

    async def test_an_error_is_a_retry_and_the_loop_goes_on(
        self, mp: Milepost, caplog: pytest.LogCaptureFixture
    ) -> None:
        await mp.create_subscription("shipping", retry=Retry(delay=60))
        await orders(mp, 2)
        seen: list[int] = []
        async with mp.consumer("shipping") as consumer:
            async for delivery in consumer:
                async with delivery as message:
                    seen.append(message.position)
                    if len(seen) == 1:
                        raise ValueError("no such address")
                if len(seen) == 2:
                    break
            await until(lambda: _is(mp, {1: "retrying"}))
        [row] = [each async for each in mp.manage("shipping").deliveries()]
        assert (row.reason, row.attempts) == ("ValueError: no such address", 1)
        assert 'raise ValueError("no such address")' in row.error
        assert row.due is not None
        assert "position 1 of order-0: failed at attempt 1" in caplog.text

    @pytest.mark.shard("variants", fast=["error0-rows0", "error2-rows2", "error3-rows3"])
    @pytest.mark.parametrize(
        ("error", "rows"),
        [
            (Park("odd"), {1: "parked"}),
            (Skip("odd"), {}),
            (RetryLater(60, reason="odd"), {1: "retrying"}),
            (RetryLater(60, count=False), {1: "retrying"}),
        ],
    )
    async def test_a_handlers_outcomes(self, mp: Milepost, error: Exception, rows: dict[int, str]) -> None:
        await mp.create_subscription("shipping")
        await orders(mp, 1)
        async with mp.consumer("shipping") as consumer:
            async with (await take(consumer, 1))[0]:
                raise error
            await until(lambda: _is(mp, rows))
            await until(lambda: _has_passed(mp))

    async def test_what_was_settled_by_hand_stays_so(self, mp: Milepost, caplog: pytest.LogCaptureFixture) -> None:
        await mp.create_subscription("shipping")
        await orders(mp, 2)
        async with mp.consumer("shipping") as consumer:
            first, second = await take(consumer, 2)
            async with first:
                await first.park("by hand")
            async with second:
                await second.ack()
                raise ValueError("too late to matter")
            await until(lambda: _is(mp, {1: "parked"}))
            await until(lambda: _has_passed(mp))
        assert "after position 2 was settled: ValueError('too late to matter')" in caplog.text

    async def test_a_cancelled_block_gives_it_back_uncounted(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        await orders(mp, 1)
        begun = asyncio.Event()

        async def work() -> None:
            async with mp.consumer("shipping") as consumer:
                async with (await take(consumer, 1))[0]:
                    begun.set()
                    await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        assert await states(mp) == {}
        async with mp.consumer("shipping") as consumer:
            assert [delivery.attempt for delivery in await take(consumer, 1)] == [1]

    async def test_too_late_is_logged(self, mp: Milepost, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING)
        await mp.create_subscription("shipping", timeout=0.1, retry=AT_ONCE)
        await orders(mp, 1)
        async with mp.consumer("shipping") as consumer:
            [first] = await take(consumer, 1)
            async with first:
                await take(consumer, 1)
        assert "the message at position 1 timed out" in caplog.text


async def test_a_late_settlement_changes_nothing(mp: Milepost) -> None:
    await mp.create_subscription("shipping", timeout=60, retry=AT_ONCE)
    await orders(mp, 1)
    async with mp.consumer("shipping", capacity=1) as slow:
        [late] = await take(slow, 1)
        async with taking(mp, "shipping", _hold, priority=1) as other:
            # The other is there by then: it does not come to the slow one again.
            await late.extend(0.01)
            await other.until(1)
            for settle in (late.ack, late.retry, late.park, late.skip, late.stop):
                with pytest.raises(Lost):
                    await settle()
            settled = await slow.settle(ack=[late])
            assert (settled.moved, settled.refused) == ((), (1,))
            assert other.consumer.statistics().in_flight == 1


async def _hold(delivery: Any) -> None:
    await delivery.extend(60)


async def test_a_message_that_is_parked_without_a_reason_says_so(
    mp: Milepost, caplog: pytest.LogCaptureFixture
) -> None:
    await mp.create_subscription("shipping")
    await orders(mp, 1)
    async with mp.consumer("shipping") as consumer:
        [delivery] = await take(consumer, 1)
        await delivery.park()
    assert "parked at attempt 1: no reason was given" in caplog.text
