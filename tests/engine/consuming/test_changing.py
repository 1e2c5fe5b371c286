"""The subscription changes, rests, moves and goes under running consumers: none is dropped, it holds at once."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from engine.consuming.taking import Taker, ack, is_dry, orders, take, taking, until
from milepost import Checkpoint, ConsumerClosed, Lost, Milepost, NewMessage, NotConfirmed, Retry, by_property
from milepost.engine.checks import MAX_DURATION_SECONDS
from milepost.engine.consumers.host import ConsumerHost
from milepost.engine.operate.manage import ManagedSubscription
from milepost.progress.protocol import SubscriptionRecord
from support import MakeMilepost, qualified


class TestSettings:
    """A change is in force when `update` returns, and the consumer that was there before sees it."""

    async def test_the_filter(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", where="n < 10")
        async with taking(mp, "shipping") as taker:
            await orders(mp, 2)
            await taker.until(2)
            for turn in range(10):
                await mp.manage("shipping").update(where=f"n == {100 + turn}")
                await orders(mp, 1)
                await orders(mp, 1, first=100 + turn)
                await taker.until(3 + turn)
            assert taker.seen == [1, 2, *range(4, 24, 2)]
            assert taker.consumer.closed is None

    async def test_what_was_read_and_nobody_has_goes_by_the_new_filter(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", where="n < 5 || n == 7")
        await orders(mp, 10)
        async with mp.consumer("shipping", capacity=1) as consumer:
            [first] = await take(consumer, 1)
            await mp.manage("shipping").update(where="n == 3 || n == 8")
            await ack([first])
            assert await ack(await take(consumer, 1)) == [4]
            # What the old one rejected stays so.
            await orders(mp, 1, first=8)
            assert await ack(await take(consumer, 1)) == [11]
        info = await mp.manage("shipping").info()
        assert (info.lag.positions, info.unrouted) == (0, 0)

    async def test_categories_streams_and_types(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", category="order")
        async with taking(mp, "shipping") as taker:
            await orders(mp, 1)
            await taker.until(1)
            await mp.manage("shipping").update(category="invoice", types=["sent"])
            await orders(mp, 1)
            await mp.append("invoice-1", [NewMessage("written"), NewMessage("sent")])
            assert await taker.until(2) == [1, 4]
            await mp.manage("shipping").update(category=None, types=None, stream="order-7")
            await mp.append("order-7", NewMessage("placed"))
            assert await taker.until(3) == [1, 4, 5]

    async def test_the_time_out(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", timeout=3600, retry=Retry(delay=0, jitter=0))
        await orders(mp, 1)
        async with mp.consumer("shipping") as consumer:
            await take(consumer, 1)
            await mp.manage("shipping").update(timeout=0.1)
            await orders(mp, 1)
            await take(consumer, 1)
            assert [(each.position, each.attempt) for each in await take(consumer, 1)] == [(2, 2)]

    async def test_the_retries(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        await orders(mp, 1)
        async with mp.consumer("shipping") as consumer:
            [delivery] = await take(consumer, 1)
            await mp.manage("shipping").update(retry=Retry(attempts=2, delay=0, jitter=0))
            await delivery.retry()
            [delivery] = await take(consumer, 1)
            await delivery.retry(reason="again")
            await until(lambda: _parked(mp, 1))

    async def test_the_strategy(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping") as first, mp.consumer("shipping") as second:
            await orders(mp, 4)
            held = [*await take(first, 2), *await take(second, 2)]
            # Those who have something can ask for it: nothing of that is waited for.
            await mp.manage("shipping").update(strategy="dispatch_to_single")
            await orders(mp, 4)
            assert await ack(await take(first, 4)) == [5, 6, 7, 8]
            assert await ack(held) == [1, 3, 2, 4]
            await mp.manage("shipping").update(strategy="round_robin")
            await orders(mp, 2)
            assert await ack([*await take(first, 1), *await take(second, 1)]) in ([9, 10], [10, 9])
            assert (first.closed, second.closed) == (None, None)
        assert (await mp.manage("shipping").info()).lag.positions == 0

    @pytest.mark.shard("variants", fast=["pinned"])
    @pytest.mark.parametrize("strategy", ["pinned", "pinned_by_correlation", "dispatch_to_single"])
    async def test_a_strategy_while_messages_wait_for_room(self, mp: Milepost, strategy: str) -> None:
        await mp.create_subscription("shipping")
        async with (
            mp.consumer("shipping", capacity=2) as first,
            mp.consumer("shipping", capacity=2) as second,
        ):
            await orders(mp, 12, streams=6)
            held = [*await take(first, 2), *await take(second, 2)]
            await mp.manage("shipping").update(strategy=strategy)
            seen = await ack(held)
            while len(seen) < 12:
                await until(lambda: bool(first._arrived or second._arrived))
                seen += await ack([*first.at_hand(2), *second.at_hand(2)])
            assert sorted(seen) == list(range(1, 13))

    async def test_the_order(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", retry=Retry(delay=60))
        async with mp.consumer("shipping") as consumer:
            await orders(mp, 2, streams=1, customer=1)
            first, second = await take(consumer, 2)
            await first.retry()
            # Who has something can ask for it.
            await mp.manage("shipping").update(ordered_by=by_property("customer"))
            await second.ack()
            # The one that failed holds its customer now, and nobody else.
            await orders(mp, 1, customer=1)
            await orders(mp, 1, customer=2)
            assert await ack(await take(consumer, 1)) == [4]
            assert await is_dry(consumer)
            await mp.manage("shipping").retry([1])
            assert await ack(await take(consumer, 1)) == [1]
            assert await ack(await take(consumer, 1)) == [3]
            await mp.manage("shipping").update(ordered_by=None)
            await orders(mp, 2, customer=1)
            assert len(await take(consumer, 2)) == 2

    async def test_an_order_while_messages_are_out(self, mp: Milepost) -> None:
        """What is out stays so, and holds its key; so does what comes back of it."""
        await mp.create_subscription("shipping", retry=Retry(delay=0, jitter=0))
        async with mp.consumer("shipping", capacity=2) as consumer, mp.consumer("shipping") as other:
            await consumer.configure(capacity=3)
            await orders(mp, 6, streams=2)
            held = [*await take(consumer, 3), *await take(other, 3)]
            await other.drain()
            await mp.manage("shipping").update(ordered_by="stream")
            await orders(mp, 4, streams=2)
            assert sorted(each.position for each in held) == [1, 2, 3, 4, 5, 6]
            by_position = {each.position: each for each in held}
            await ack([by_position[position] for position in (2, 6, 1, 3)])
            assert await is_dry(consumer)
            # Of the first stream one is left, and is retried; the others wait for it.
            await by_position[5].retry()
            [again] = await take(consumer, 1)
            assert (again.position, again.attempt) == (5, 2)
            assert await is_dry(consumer)
            await ack([again])
            assert await ack(await take(consumer, 1)) == [7]
            await by_position[4].ack()
            seen = await ack(await take(consumer, 1)) + await ack(await take(consumer, 1))
            assert sorted([*seen, *await ack(await take(consumer, 1))]) == [8, 9, 10]
        assert (await mp.manage("shipping").info()).lag.positions == 0

    async def test_no_order_while_messages_wait_for_others(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", ordered_by="stream", retry=Retry(delay=3600))
        async with mp.consumer("shipping") as consumer:
            await orders(mp, 6, streams=2)
            first, second = await take(consumer, 2)
            await first.retry()
            await until(lambda: _waiting(mp, 2))
            await mp.manage("shipping").update(ordered_by=None)
            assert sorted(await ack(await take(consumer, 4))) == [3, 4, 5, 6]
            await second.ack()
        assert (await mp.manage("shipping").info()).retrying == 1

    async def test_an_order_that_an_owner_did_not_live_to_see(
        self, mp: Milepost, make_mp: MakeMilepost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever has the subscription next gives rows their keys first."""
        await mp.create_subscription("shipping", retry=Retry(delay=0, jitter=0))
        monkeypatch.setattr("milepost.engine.operate.create.MAX_FOLLOW_SECONDS", 0.1)
        async with make_mp() as other:
            async with other.consumer("shipping") as consumer:
                await orders(mp, 3, streams=1)
                held = await take(consumer, 3)
                for delivery in held[:2]:
                    await delivery.retry(after=3600)
                await until(lambda: _retrying(mp, 2))
                [host] = other.consumer_registry._hosts_by_address.values()
                monkeypatch.setattr(host, "_adapt", _nothing)
                with pytest.raises(NotConfirmed):
                    await mp.manage("shipping").update(ordered_by="stream")
                assert [d.key async for d in mp.manage("shipping").deliveries()] == [None, None]
        async with mp.consumer("shipping") as consumer:
            await until(lambda: bool(consumer.dispatcher.lanes))
            assert [d.key async for d in mp.manage("shipping").deliveries(limit=2)] == ["order-0", "order-0"]
            assert await is_dry(consumer)
            await mp.manage("shipping").retry([2])
            assert await is_dry(consumer)
            await mp.manage("shipping").retry([1])
            assert [await ack(await take(consumer, 1)) for _ in range(3)] == [[1], [2], [3]]

    async def test_an_order_of_one_that_is_paused_with_something_out(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping") as consumer:
            await orders(mp, 2, streams=1)
            held = await take(consumer, 2)
            with pytest.raises(NotConfirmed):
                await mp.manage("shipping").pause(timeout=0.1)
            await mp.manage("shipping").update(ordered_by="stream", strategy="pinned")
            await held[0].retry(after=0)
            await held[1].ack()
            await mp.manage("shipping").resume()
            assert await ack(await take(consumer, 1)) == [1]

    async def test_how_many_consumers_there_may_be(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping") as first, mp.consumer("shipping") as second:
            await mp.manage("shipping").update(max_consumers=1)
            with pytest.raises(ConsumerClosed, match="too many consumers"):
                async with mp.consumer("shipping"):
                    pass
            assert (first.closed, second.closed) == (None, None)
            await mp.manage("shipping").update(max_consumers=3)
            async with mp.consumer("shipping"):
                pass

    async def test_the_window_and_the_limits(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", window=1000, max_unrouted=1000)
        async with mp.consumer("shipping", where="false") as consumer:
            await mp.manage("shipping").update(window=2, max_unrouted=3)
            await orders(mp, 20)
            await until(lambda: _unrouted(mp, 3))
            assert (await mp.manage("shipping").info()).lag.positions >= 15
            await mp.manage("shipping").update(max_unrouted=1000, window=100)
            await until(lambda: _unrouted(mp, 20))
            await consumer.configure(where=None)
            assert await ack(await take(consumer, 20)) == list(range(1, 21))

    async def test_the_checkpoint(self, mp: Milepost) -> None:
        """The first that is settled of a lane is written at once, however long the machine has been up."""
        await mp.create_subscription(
            "shipping", checkpoint=Checkpoint(seconds=MAX_DURATION_SECONDS, messages=10**6)
        )
        await orders(mp, 3)
        async with mp.consumer("shipping") as consumer:
            await ack(await take(consumer, 1))
            await until(lambda: _lag(mp, 2))
            await ack(await take(consumer, 1))
            await mp.manage("shipping").update(checkpoint=Checkpoint(seconds=0.01))
            await until(lambda: _lag(mp, 1))

    async def test_what_parked_messages_hold(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", ordered_by="stream", on_park="block")
        await orders(mp, 2, streams=1)
        async with mp.consumer("shipping") as consumer:
            await (await take(consumer, 1))[0].park("odd")
            await until(lambda: _parked(mp, 1))
            assert await is_dry(consumer)
            await mp.manage("shipping").update(on_park="continue")
            assert await ack(await take(consumer, 1)) == [2]

    async def test_from_another_process(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        await mp.create_subscription("shipping")
        async with make_mp() as other, taking(mp, "shipping") as taker:
            for turn in range(5):
                await other.manage("shipping").update(where=f"n == {turn}")
                await orders(other, 5)
                await taker.until(turn + 1)
            assert taker.seen == [1, 7, 13, 19, 25]

    async def test_the_lease(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", lease=30)
        async with mp.consumer("shipping") as consumer:
            await orders(mp, 2)
            first, second = await take(consumer, 2)
            await first.ack()
            for lease in (5, 60):
                await mp.manage("shipping").update(lease=lease)
                assert await leases(mp) == [lease]
            await second.ack()
            await orders(mp, 1)
            assert await ack(await take(consumer, 1)) == [3]

    async def test_the_lease_of_one_of_several(self, mp: Milepost) -> None:
        """The shortest holds for all in a process, for those that have nothing out only until they have moved."""
        for name in ("shipping", "billing"):
            await mp.create_subscription(name, lease=30)
        async with mp.consumer("shipping") as consumer, mp.consumer("billing") as other:
            await orders(mp, 1)
            [held], [billed] = await take(consumer, 1), await take(other, 1)
            await mp.manage("shipping").update(lease=5)
            assert await leases(mp) == [5]
            await ack([billed])
            await until(lambda: _have_leases(mp, [5, 30]))
            await held.ack()
            await orders(mp, 1)
            assert [await ack(await take(each, 1)) for each in (consumer, other)] == [[2], [2]]

    async def test_who_does_not_follow_is_named(self, mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("milepost.engine.operate.create.MAX_FOLLOW_SECONDS", 0.2)
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping") as consumer:
            host = next(iter(mp.consumer_registry._hosts_by_address.values()))
            monkeypatch.setattr(host, "_follow", lambda: None)
            await until(lambda: bool(consumer.dispatcher.lanes))
            [owner] = (await mp.manage("shipping").info()).owners
            with pytest.raises(NotConfirmed) as refused:
                await mp.manage("shipping").update(timeout=3)
            assert refused.value.workers == (owner,)


async def leases(mp: Milepost) -> list[int]:
    """Seconds after which each worker that lives is replaced."""
    statement = qualified("select extract(epoch from lease)::integer from {}.workers order by 1", mp)
    return [seconds for (seconds,) in await mp.log.database.execute(statement, {})]


async def _have_leases(mp: Milepost, wanted: list[int]) -> bool:
    return await leases(mp) == wanted


async def _parked(mp: Milepost, count: int) -> bool:
    return (await mp.manage("shipping").info()).parked == count


async def _waiting(mp: Milepost, count: int) -> bool:
    return (await mp.manage("shipping").info()).waiting == count


async def _retrying(mp: Milepost, count: int) -> bool:
    return (await mp.manage("shipping").info()).retrying == count


async def _nothing() -> None: ...


async def _unrouted(mp: Milepost, count: int) -> bool:
    return (await mp.manage("shipping").info()).unrouted == count


async def _lag(mp: Milepost, positions: int) -> bool:
    return (await mp.manage("shipping").info()).lag.positions == positions


class TestPause:
    async def test_nothing_goes_out_when_it_returns_and_consumers_stay(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping") as consumer:
            await orders(mp, 10)
            held = await take(consumer, 3)
            pausing = asyncio.create_task(mp.manage("shipping").pause())
            # What nobody has looked at goes back; what somebody has is settled first.
            await until(lambda: consumer.dispatcher.owned is not None and consumer.dispatcher.owned.closing)
            await ack(held)
            await pausing
            info = await mp.manage("shipping").info()
            assert (info.status, info.lag.positions) == ("paused", 7)
            assert (consumer.standby, consumer.closed) == (False, None)
            assert await is_dry(consumer)
            await mp.manage("shipping").resume()
            assert await ack(await take(consumer, 7)) == list(range(4, 11))

    async def test_who_still_has_something_is_said_and_it_is_paused_all_the_same(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping") as consumer:
            await orders(mp, 2)
            held = await take(consumer, 1)
            with pytest.raises(NotConfirmed):
                await mp.manage("shipping").pause(timeout=0.2)
            await ack(held)
            await mp.manage("shipping").pause()
            assert await is_dry(consumer)

    async def test_who_waits_goes_on_at_once_when_it_is_resumed(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping", capacity=1) as slow, mp.consumer("shipping") as other:
            await orders(mp, 4)
            held, first = await take(slow, 1), await take(other, 1)
            with pytest.raises(NotConfirmed):
                await mp.manage("shipping").pause(timeout=0.1)
            seen = await ack(first)
            assert other.at_hand(1) == []
            await mp.manage("shipping").resume()
            seen += await ack(await take(other, 2))
            assert sorted([*seen, *await ack(held)]) == [1, 2, 3, 4]
        assert (await mp.manage("shipping").info()).lag.positions == 0

    async def test_a_consumer_that_comes_while_it_is_paused_waits(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        await orders(mp, 1)
        await mp.manage("shipping").pause()
        async with mp.consumer("shipping") as consumer:
            assert not consumer.standby
            assert await is_dry(consumer)
            await mp.manage("shipping").resume()
            assert await ack(await take(consumer, 1)) == [1]

    async def test_it_stays_paused_over_restarts(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        await mp.create_subscription("shipping")
        async with make_mp() as other, other.consumer("shipping"):
            await mp.manage("shipping").pause()
        await orders(mp, 1)
        async with mp.consumer("shipping") as consumer:
            assert await is_dry(consumer)

    async def test_what_times_out_meanwhile_is_an_attempt(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", timeout=0.3, retry=Retry(delay=0, jitter=0))
        async with mp.consumer("shipping") as consumer:
            await orders(mp, 1)
            [late] = await take(consumer, 1)
            await mp.manage("shipping").pause()
            with pytest.raises(Lost, match="timed out"):
                await late.ack()
            await mp.manage("shipping").resume()
            assert [each.attempt for each in await take(consumer, 1)] == [2]


class TestMove:
    async def test_back_and_everything_comes_again(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        async with taking(mp, "shipping") as taker:
            await orders(mp, 5)
            await taker.until(5)
            await mp.manage("shipping").move("beginning")
            assert await taker.until(10) == [1, 2, 3, 4, 5] * 2
            assert set(taker.attempts) == {1}

    async def test_forward_while_a_consumer_has_something(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping", capacity=1) as consumer:
            await orders(mp, 5)
            held = await take(consumer, 1)
            moving = asyncio.create_task(mp.manage("shipping").move(4))
            await until(lambda: consumer.dispatcher.owned is not None and consumer.dispatcher.owned.closing)
            await ack(held)
            await moving
            assert await ack(await take(consumer, 1)) == [5]
            assert consumer.closed is None

    async def test_rows_above_are_forgotten(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping") as consumer:
            await orders(mp, 3)
            for delivery in await take(consumer, 3):
                await delivery.park("odd")
            await until(lambda: _parked(mp, 3))
            assert await mp.manage("shipping").move(1) == 2
            assert await ack(await take(consumer, 2)) == [2, 3]
            assert await _parked(mp, 1)


COMMANDS: dict[str, Callable[[ManagedSubscription, float], Coroutine[Any, Any, Any]]] = {
    "move": lambda managed, timeout: managed.move("beginning", timeout=timeout),
    "replay": lambda managed, timeout: managed.replay("beginning", timeout=timeout),
    "delete": lambda managed, timeout: managed.delete(timeout=timeout),
}


class TestWhatFails:
    """A command that is not confirmed does nothing: whoever takes from the subscription goes on."""

    @pytest.mark.shard("variants", fast=["delete"])
    @pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
    async def test_others_get_messages_at_once(self, mp: Milepost, command: Any) -> None:
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping", capacity=1) as slow, mp.consumer("shipping") as other:
            await orders(mp, 6)
            held, done = await take(slow, 1), await ack(await take(other, 1))
            with pytest.raises(NotConfirmed, match="nothing was done"):
                await command(mp.manage("shipping"), 0.1)
            seen = [*done, *await ack(await take(other, 4)), *await ack(held)]
            assert sorted(seen) == [1, 2, 3, 4, 5, 6]
            assert (await mp.manage("shipping").info()).barrier is None


class TestWhatTakesLong:
    """While a command waits for a delivery that takes long, the other consumers go on."""

    @pytest.mark.shard("variants", fast=["move"])
    @pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
    async def test_others_get_messages_meanwhile(
        self, mp: Milepost, make_mp: MakeMilepost, monkeypatch: pytest.MonkeyPatch, command: Any
    ) -> None:
        monkeypatch.setattr("milepost.engine.operate.control.STANDSTILL_SECONDS", 0.05)
        await mp.create_subscription("shipping")
        async with (
            make_mp() as server,
            server.consumer("shipping", capacity=1) as slow,
            server.consumer("shipping") as other,
        ):
            await orders(mp, 2)
            held, seen = await take(slow, 1), await ack(await take(other, 1))
            acting = asyncio.create_task(command(mp.manage("shipping"), 60))
            await until(lambda: slow.dispatcher.owned is not None and slow.dispatcher.owned.closing)
            for turn in range(3):
                await orders(mp, 4)
                seen += await ack(await take(other, 4))
                assert not acting.done(), turn
            assert sorted([*seen, *(each.position for each in held)]) == list(range(1, 15))
            await ack(held)
            await acting

    async def test_where_all_take_long_it_comes_to_rest(
        self, mp: Milepost, make_mp: MakeMilepost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """There is always something out that takes longer than the first standstill."""
        monkeypatch.setattr("milepost.engine.operate.control.STANDSTILL_SECONDS", 0.01)
        await mp.create_subscription("shipping")

        async def slowly(delivery: Any) -> None:
            await asyncio.sleep(0.1)
            await delivery.ack()

        async with (
            make_mp() as server,
            taking(server, "shipping", slowly, capacity=1) as one,
            taking(server, "shipping", slowly, capacity=1) as other,
        ):
            await orders(mp, 40)
            await one.until(1)
            await other.until(1)
            assert await mp.manage("shipping").move(30) == 0
            assert (await mp.manage("shipping").info()).lanes[0].position >= 30


class TestForce:
    """What is out is taken back at once, and that is no attempt."""

    async def test_a_pause(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        await mp.create_subscription("shipping", retry=Retry.never)
        async with make_mp() as server, server.consumer("shipping") as consumer:
            await orders(mp, 3)
            held = await take(consumer, 3)
            await held[1].ack()
            await mp.manage("shipping").pause(force=True)
            assert (await mp.manage("shipping").info()).owners == ()
            with pytest.raises(Lost, match="an operator took it back"):
                await held[0].ack()
            await mp.manage("shipping").resume()
            again = await take(consumer, 2)
            assert [(each.position, each.attempt) for each in again] == [(1, 1), (3, 1)]
            await ack(again)
        info = await mp.manage("shipping").info()
        assert (info.lag.positions, info.parked) == (0, 0)

    async def test_a_message_that_was_tried_before_keeps_its_count(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", retry=Retry(delay=0, jitter=0))
        async with mp.consumer("shipping") as consumer:
            await orders(mp, 1)
            [first] = await take(consumer, 1)
            await first.retry()
            assert [each.attempt for each in await take(consumer, 1)] == [2]
            await mp.manage("shipping").pause(force=True)
            await mp.manage("shipping").resume()
            assert [each.attempt for each in await take(consumer, 1)] == [2]

    @pytest.mark.shard("variants")
    async def test_a_move(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping", capacity=2) as consumer:
            await orders(mp, 6)
            held = await take(consumer, 2)
            await mp.manage("shipping").move(4, force=True)
            with pytest.raises(Lost):
                await held[0].ack()
            assert await ack(await take(consumer, 2)) == [5, 6]
        assert (await mp.manage("shipping").info()).lag.positions == 0

    async def test_a_replay(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping") as consumer:
            await orders(mp, 3)
            held = await take(consumer, 3)
            await ack(held[:2])
            assert await mp.manage("shipping").replay("beginning", force=True) == 2
            found = [(each.position, each.replay) for each in await take(consumer, 3)]
            assert found == [(1, True), (2, True), (3, False)]

    @pytest.mark.shard("variants")
    async def test_a_delete(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping") as consumer:
            await orders(mp, 1)
            [held] = await take(consumer, 1)
            await mp.manage("shipping").delete(force=True)
            assert await _end(consumer) == "deleted"
            with pytest.raises(Lost):
                await held.ack()
        assert await mp.subscriptions() == []

    async def test_nobody_is_hurried_whose_messages_end(
        self, mp: Milepost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("milepost.engine.operate.control.STANDSTILL_SECONDS", 60)
        await mp.create_subscription("shipping")
        async with mp.consumer("shipping") as consumer:
            await orders(mp, 2)
            held = await take(consumer, 2)
            pausing = asyncio.create_task(mp.manage("shipping").pause(force=True))
            await until(lambda: consumer.dispatcher.owned is not None and consumer.dispatcher.owned.closing)
            assert await ack(held) == [1, 2]
            await pausing
        assert (await mp.manage("shipping").info()).lag.positions == 0


class TestReplay:
    async def test_exactly_what_was_handled_says_that_it_is_a_replay(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        seen: list[tuple[int, bool]] = []

        async def note(delivery: Any) -> None:
            seen.append((delivery.position, delivery.replay))
            await delivery.ack()

        async with taking(mp, "shipping", note):
            await orders(mp, 5)
            await until(lambda: len(seen) == 5)
            assert await mp.manage("shipping").replay(1, 4) == 3
            await orders(mp, 2)
            await until(lambda: len(seen) == 10)
        assert seen[:5] == [(position, False) for position in range(1, 6)]
        assert sorted(seen[5:]) == [(2, True), (3, True), (4, True), (6, False), (7, False)]


class TestDelete:
    async def test_under_running_consumers(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        await mp.create_subscription("shipping")
        async with make_mp() as other, other.consumer("shipping") as owner, mp.consumer("shipping") as standby:
            await orders(mp, 3)
            held = await take(owner, 1)
            deleting = asyncio.create_task(mp.manage("shipping").delete())
            await until(lambda: owner.dispatcher.owned is not None and owner.dispatcher.owned.closing)
            ends = [asyncio.create_task(_end(consumer)) for consumer in (owner, standby)]
            await ack(held)
            await deleting
            assert await asyncio.gather(*ends) == ["deleted", "deleted"]
            with pytest.raises(Lost, match="settled before"):
                await held[0].ack()
        assert await mp.subscriptions() == []


async def _end(consumer: Any) -> str:
    async with asyncio.timeout(40):
        try:
            async for _ in consumer:
                pass
        except ConsumerClosed as closed:
            return closed.reason
    raise AssertionError("it did not end")


async def test_all_at_once(mp: Milepost, make_mp: MakeMilepost) -> None:
    """Settings, pauses and moves in any order, while consumers take: nothing is lost."""
    await mp.create_subscription("shipping", retry=Retry(delay=0, jitter=0))
    seen: set[int] = set()

    async def note(delivery: Any) -> None:
        await asyncio.sleep(0.001)
        await delivery.ack()
        seen.add(delivery.position)

    async with make_mp() as other, taking(mp, "shipping", note) as first, taking(mp, "shipping", note) as second:
        managed = other.manage("shipping")
        for turn in range(6):
            await orders(mp, 20)
            await managed.update(strategy=("pinned", "round_robin")[turn % 2], window=turn + 1)
            await managed.pause()
            await orders(mp, 10)
            await managed.update(ordered_by=("stream", None)[turn % 2], timeout=20 + turn)
            await managed.resume()
        await until(lambda: len(seen) == 180)
        for taker in (first, second):
            assert isinstance(taker, Taker)
            assert taker.consumer.closed is None


async def test_a_trace_knows_which_filter_decided(mp: Milepost) -> None:
    await mp.create_subscription("shipping", where="n < 5")
    await orders(mp, 8, streams=1)
    async with mp.consumer("shipping", capacity=2) as consumer:
        held = await take(consumer, 2)
        await mp.manage("shipping").update(where="n > 3")
        await orders(mp, 2, streams=1, first=8)
        await ack(held)
        # The third and the fourth were read, and nobody had had them; the sixth to eighth had been rejected.
        assert await ack(await take(consumer, 1)) == [5]
        assert await ack(await take(consumer, 2)) == [9, 10]
    found = {each.message.position: (each.state, each.definition) for each in await mp.trace("order-0")}
    assert found == {
        **dict.fromkeys((1, 2), ("done", 1)),
        **dict.fromkeys((3, 4), ("filtered", 2)),
        **dict.fromkeys((6, 7, 8), ("filtered", 1)),
        **dict.fromkeys((5, 9, 10), ("done", 2)),
    }


TAKEN = "select {0}.take(s.id, '{{0}}') from {0}.subscriptions s"
"""As another process does that takes the lane: what its owner knows is of no use any more, and it cannot write."""


class TestVanished:
    """A filter changes, and the owner is gone before that is in force, or before that is written."""

    @staticmethod
    async def fates(mp: Milepost) -> dict[int, tuple[str, int | None]]:
        return {each.message.position: (each.state, each.definition) for each in await mp.trace("order-0")}

    async def test_before_it_heard_of_it_all_is_passed_by_the_old_one(
        self, mp: Milepost, make_mp: MakeMilepost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old = {**dict.fromkeys(range(1, 6), ("done", 1)), **dict.fromkeys((6, 7), ("filtered", 1))}
        hears = asyncio.Event()

        async def deaf(self: ConsumerHost, opened: SubscriptionRecord) -> None:
            await hears.wait()

        await mp.create_subscription("shipping", where="n < 5")
        async with make_mp() as owner, taking(owner, "shipping") as taker:
            await orders(mp, 4, streams=1)
            await taker.until(4)
            with monkeypatch.context() as patched:
                patched.setattr(ConsumerHost, "learn", deaf)
                patched.setattr("milepost.engine.operate.create.MAX_FOLLOW_SECONDS", 0)
                for where in ("n == 6", "n >= 3"):
                    with pytest.raises(NotConfirmed):
                        await mp.manage("shipping").update(where=where)
                await orders(mp, 3, streams=1, first=4)
                await until(lambda: is_at_rest(mp))
                assert await self.fates(mp) == old
                # Nobody can write any more: the owner vanishes like this.
                await mp.log.database.execute(qualified(TAKEN, mp), {})
                hears.set()
        assert await self.fates(mp) == old
        async with taking(mp, "shipping") as taker:
            await orders(mp, 2, streams=1, first=2)
            assert await taker.until(1) == [9]
            await until(lambda: is_at_rest(mp))
        new = {8: ("filtered", 3), 9: ("done", 3)}
        assert await self.fates(mp) == {**old, **new}

    async def test_before_it_was_written_what_it_had_is_judged_anew(
        self, mp: Milepost, make_mp: MakeMilepost
    ) -> None:
        await mp.create_subscription("shipping", where="n < 5")
        await orders(mp, 8, streams=1)
        async with make_mp() as owner, owner.consumer("shipping", capacity=2) as consumer:
            await take(consumer, 2)
            await mp.manage("shipping").update(where="n > 3")
            await mp.log.database.execute(qualified(TAKEN, mp), {})
        async with taking(mp, "shipping") as taker:
            await taker.until(1)
            await until(lambda: is_at_rest(mp))
        # The first two had been handed out: that is forgotten, perhaps also that the last three had been rejected.
        assert await self.fates(mp) == {
            **dict.fromkeys(range(1, 5), ("filtered", 2)),
            **{at: ("done", 2) if at in taker.seen else ("filtered", 1) for at in range(5, 9)},
        }
        assert 5 in taker.seen


async def is_at_rest(mp: Milepost) -> bool:
    """Whether everything is settled, and written."""
    return (await mp.manage("shipping").info()).lag.positions == 0
