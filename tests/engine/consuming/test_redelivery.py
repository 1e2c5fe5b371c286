"""What is not settled comes again: counted, after the back-off, and parked at the limit."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from engine.consuming.processes import Process, Start
from engine.consuming.taking import PATIENCE, ack, is_dry, orders, pass_time, take, taking, until
from engine.vanished import expire
from milepost import Milepost, NewMessage, Retry
from milepost.dispatch import Lane
from milepost.testing import MilepostDB
from patience import within
from support import qualified

QUICK = Retry(attempts=3, delay=0.05, factor=1, jitter=0)


class TestTimeOut:
    async def test_it_counts_and_waits_and_is_parked_at_the_limit(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", timeout=0.1, retry=QUICK)
        await orders(mp, 1)
        async with mp.consumer("shipping") as consumer:
            assert [(await take(consumer, 1))[0].attempt for _ in range(3)] == [1, 2, 3]
            await until(lambda: _parked(mp, 1))
            statistics = consumer.statistics()
            assert (statistics.timed_out, statistics.last_error) == (3, "timed out")
        [parked] = [each async for each in mp.manage("shipping").deliveries(state="parked")]
        assert (parked.reason, parked.attempts, parked.consumer) == ("timed out", 3, consumer.name)

    @pytest.mark.shard("variants")
    async def test_with_a_grain_finer_than_a_second(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", timeout=0.02, retry=Retry(delay=0, jitter=0))
        await orders(mp, 1)
        async with mp.consumer("shipping") as consumer:
            for attempt in range(1, 6):
                [delivery] = await take(consumer, 1)
                assert delivery.attempt == attempt
                assert delivery.claim.deadline is not None
                assert delivery.claim.deadline - consumer.dispatcher._clock.now() <= 0.02

    async def test_another_consumer_gets_it(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", timeout=0.2, retry=Retry(delay=0, jitter=0))
        await orders(mp, 1)
        async with mp.consumer("shipping", capacity=1) as stuck:
            await take(stuck, 1)
            async with mp.consumer("shipping", priority=1) as other:
                assert [(each.position, each.attempt) for each in await take(other, 1)] == [(1, 2)]

    async def test_what_a_busy_consumer_has_not_looked_at_is_no_attempt(self, mp: Milepost) -> None:
        """It has room for ten and time for one: the others go to whoever has time, as good as new."""
        await mp.create_subscription("shipping", timeout=600, retry=Retry(delay=60))
        await orders(mp, 10)
        async with mp.consumer("shipping", capacity=10) as busy:
            [one] = await take(busy, 1)
            await one.extend(10**6)
            async with taking(mp, "shipping", capacity=10) as other:
                async with within(PATIENCE, lambda: f"{other.seen}, wanted 9"):
                    while len(other.seen) < 9:
                        if busy.in_flight > 1 and not other.consumer.in_flight:
                            pass_time(busy, 601)
                        await asyncio.sleep(0.005)
                assert sorted(other.seen) == list(range(2, 11))
                assert set(other.attempts) == {1}
        assert [each async for each in mp.manage("shipping").deliveries()] == []

    async def test_the_time_begins_when_a_consumer_looks_at_it(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", timeout=3600)
        await orders(mp, 4)
        async with mp.consumer("shipping") as slow:
            await until(lambda: slow.in_flight == 4)
            # All were handed to it at once, longer ago than goes unnoticed.
            handed = {each.position: each.claim.deadline or 0 for each in slow._arrived}
            for delivery in slow._arrived:
                delivery.since -= 2
            for _ in range(4):
                pass_time(slow, 2)
                [delivery] = await take(slow, 1)
                assert (delivery.claim.deadline or 0) > handed[delivery.position] + 1
                await delivery.ack()


async def _parked(mp: Milepost, count: int) -> bool:
    return (await mp.manage("shipping").info()).parked == count


async def test_a_lost_consumer_is_an_attempt(mp: Milepost) -> None:
    """As a server finds it when a connection breaks."""
    await mp.create_subscription("shipping", retry=Retry(attempts=2, delay=0.05, jitter=0), timeout=3600)
    await orders(mp, 1)
    for attempt in (1, 2):
        async with mp.consumer("shipping", capacity=1) as consumer:
            [delivery] = await take(consumer, 1)
            assert (delivery.position, delivery.attempt) == (1, attempt)
            consumer.dispatcher.lose_consumer(consumer, "consumer lost")
    await until(lambda: _parked(mp, 1))
    [parked] = [each async for each in mp.manage("shipping").deliveries()]
    assert (parked.position, parked.reason, parked.consumer) == (1, "consumer lost", consumer.name)
    await mp.append("another-1", NewMessage("placed"))
    async with mp.consumer("shipping") as consumer:
        assert [(each.position, each.attempt) for each in await take(consumer, 1)] == [(2, 1)]


async def _crash_until(
    mp: Milepost, condition: Callable[[], Awaitable[bool]], start: Start, how: str = "die", where: str = ""
) -> tuple[Process, int]:
    """Starts a process each time that one has ended, until something holds; the last one, and how many ended."""
    crashes, process = 0, start(how, where)
    async with asyncio.timeout(100):
        while not await condition():
            if process.is_over:
                await expire(mp, process.pid)
                crashes += 1
                process = start(how, where)
            await asyncio.sleep(0.02)
    return process, crashes


@pytest.mark.timeout(110)
@pytest.mark.shard("faults")
async def test_a_message_that_kills_its_process_is_parked_and_its_neighbours_are_not(
    mp: Milepost, start: Start
) -> None:
    """The first crash tells nothing: nobody had written down what ran. From the second on that is known, and each
    of them is tried alone: then a crash has one cause, and both were attempts of that message.
    """
    await mp.create_subscription("shipping", retry=Retry(attempts=3, delay=0.05), lease=60)
    for n in range(10):
        await mp.append(f"order-{n}", NewMessage("deadly" if n == 5 else "placed"))
    _, crashes = await _crash_until(mp, lambda: _parked(mp, 1), start)
    await until(lambda: start.got() == set(range(1, 11)) - {6})
    [parked] = [each async for each in mp.manage("shipping").deliveries(state="parked")]
    assert (parked.position, parked.attempts, parked.reason) == (6, 3, "its process vanished")
    assert parked.consumer is not None
    assert crashes == 1 + parked.attempts
    await until(lambda: _last_error(mp, parked.reason))


@pytest.mark.timeout(110)
@pytest.mark.shard("faults")
async def test_a_message_that_kills_its_process_goes_through_the_back_off(mp: Milepost, start: Start) -> None:
    await mp.create_subscription("shipping", retry=Retry(attempts=3, delay=100, jitter=0), lease=60)
    await mp.append("order-1", [NewMessage("deadly"), NewMessage("placed")])
    process, _ = await _crash_until(mp, lambda: _is_retrying(mp), start)
    [row] = [each async for each in mp.manage("shipping").deliveries(state="retrying")]
    assert (row.position, row.attempts, row.reason) == (1, 2, "its process vanished")
    assert row.due is not None
    assert (row.due - row.since).total_seconds() == pytest.approx(200)
    # Meanwhile all goes on, in company.
    await orders(mp, 5)
    await process.until_got(5)
    assert not process.is_over
    await process.terminate()
    # A person may not want to wait: it is alone again, and is counted anew.
    await mp.manage("shipping").retry([1])
    _, crashes = await _crash_until(mp, lambda: _is_retrying_after(mp, attempts=1), start)
    assert crashes == 1


async def _is_retrying_after(mp: Milepost, attempts: int) -> bool:
    rows = [each async for each in mp.manage("shipping").deliveries(state="retrying")]
    return [row.attempts for row in rows if row.due and row.due > row.since] == [attempts]


@pytest.mark.timeout(110)
@pytest.mark.shard("faults")
async def test_a_message_that_kills_its_process_is_found_though_its_consumer_comes_late(
    mp: Milepost, start: Start
) -> None:
    """Each process has a consumer first that does not want it: it is set aside, and under suspicion still."""
    await mp.create_subscription("shipping", retry=Retry(attempts=2, delay=0.05), lease=60)
    for n in range(4):
        await mp.append(f"order-{n}", NewMessage("deadly" if n == 1 else "placed"))
    _, crashes = await _crash_until(mp, lambda: _parked(mp, 1), start, "die late", "exists(Nothing)")
    [parked] = [each async for each in mp.manage("shipping").deliveries(state="parked")]
    assert (parked.position, crashes) == (2, 3)


async def test_what_may_have_killed_a_process_is_alone_in_it_over_all_subscriptions(
    mp: Milepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another subscription has in the same process is not blamed."""
    for name in ("shipping", "billing"):
        await mp.create_subscription(name)
    await orders(mp, 1)
    async with mp.consumer("shipping", capacity=1) as first, mp.consumer("billing", capacity=1) as second:
        suspect, [other] = await take(first, 1), await take(second, 1)
        owned = first.dispatcher.owned
        assert owned is not None
        suspected = owned.lane
        monkeypatch.setattr(Lane, "suspects", property(lambda lane: lane is suspected))
        await orders(mp, 1)
        await ack(suspect)
        # It is not handed out before the other one is settled, and then nothing else is.
        assert await is_dry(first)
        await other.ack()
        suspect = await take(first, 1)
        assert await is_dry(second)
        monkeypatch.undo()
        await ack(suspect)
        assert await ack(await take(second, 1)) == [2]


async def test_whoever_is_to_be_alone_waits_for_what_others_were_promised(
    mp: Milepost, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written down first that they run: while they wait for that, another may come to be under suspicion."""
    for name in ("shipping", "billing"):
        await mp.create_subscription(name, lease=60)
    async with mp.consumer("shipping", capacity=1) as first:
        await until(lambda: first.dispatcher.owned is not None)
        owned = first.dispatcher.owned
        assert owned is not None
        await orders(mp, 1)
        suspect = await take(first, 1)
        gone = start("hold", name="billing")
        await gone.until_got(1)
        gone.kill()
        await expire(mp, gone.pid)
        suspects: list[Any] = []
        monkeypatch.setattr(Lane, "suspects", property(lambda lane: lane in suspects))
        lock = qualified("lock table {}.deliveries in share mode", mp)
        async with await psycopg.AsyncConnection.connect(mp.url) as holder:
            # By then it cannot be written down.
            await holder.execute(lock.encode())
            async with mp.consumer("billing") as second:
                await until(
                    lambda: second.dispatcher.owned is not None and second.dispatcher.owned.lane.promised > 0
                )
                suspects.append(owned.lane)
                first.dispatcher.delivery_loop.wake()
                await holder.commit()
                assert await ack(await take(second, 1)) == [1]
                await ack(suspect)


class TestParked:
    async def test_everything_is_said_of_it(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", retry=Retry.never)
        await orders(mp, 1)
        async with mp.consumer("shipping") as consumer:
            async with (await take(consumer, 1))[0]:
                raise ValueError("no such address")
            await until(lambda: _parked(mp, 1))
        [parked] = [each async for each in mp.manage("shipping").deliveries(state="parked")]
        assert (parked.reason, parked.attempts, parked.total) == ("ValueError: no such address", 1, 1)
        assert "Traceback" in parked.error
        assert parked.consumer == consumer.name
        assert parked.message is not None
        assert parked.message.time <= parked.since

    async def test_retried_ones_go_before_new_messages_and_stay_safe_until_settled(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        await orders(mp, 3)
        async with mp.consumer("shipping", capacity=1) as consumer:
            for _ in range(3):
                await (await take(consumer, 1))[0].park("odd")
            await until(lambda: _parked(mp, 3))
            await orders(mp, 20)
            held = await take(consumer, 1)
            assert held[0].position == 4
            assert (await mp.manage("shipping").retry(all=True)).moved == 3
            await until(lambda: _parked(mp, 0))
            await until(lambda: _are_loaded(consumer, 3))
            await ack(held)
            assert [(await take(consumer, 1))[0].position] == [1]
            # While it is tried again, it still has its row.
            rows = {each.position: str(each.state) async for each in mp.manage("shipping").deliveries()}
            assert rows[1] == "retrying"
        async with mp.consumer("shipping", capacity=1) as consumer:
            found = []
            for _ in range(22):
                found += await ack(await take(consumer, 1))
            assert found == [1, 2, 3, *range(5, 24)]

    async def test_one_several_up_to_a_position_and_at_most_so_many(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        await orders(mp, 10)
        managed = mp.manage("shipping")
        async with mp.consumer("shipping") as consumer:
            for delivery in await take(consumer, 10):
                await delivery.park("odd")
            await until(lambda: _parked(mp, 10))
            assert (await managed.retry([3])).moved == 1
            assert await ack(await take(consumer, 1)) == [3]
            assert (await managed.skip([1, 2])).moved == 2
            assert (await managed.retry(up_to=6)).moved == 3
            assert sorted(await ack(await take(consumer, 3))) == [4, 5, 6]
            assert (await managed.retry(all=True, limit=2)).moved == 2
            assert sorted(await ack(await take(consumer, 2))) == [7, 8]
            await until(lambda: _parked(mp, 2))
            assert await is_dry(consumer)

    async def test_the_attempts_of_a_retried_one_are_counted_anew(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", retry=Retry(attempts=2, delay=0, jitter=0))
        await orders(mp, 1)
        async with mp.consumer("shipping") as consumer:
            for _ in range(2):
                assert [(await take(consumer, 1))[0].attempt] == [1]
                break
        async with mp.consumer("shipping") as consumer:
            for attempt in (1, 2):
                [delivery] = await take(consumer, 1)
                assert delivery.attempt == attempt
                await delivery.retry()
            await until(lambda: _parked(mp, 1))
            await mp.manage("shipping").retry(all=True)
            [delivery] = await take(consumer, 1)
            assert delivery.attempt == 1
            await delivery.retry()
            await take(consumer, 1)
        [row] = [each async for each in mp.manage("shipping").deliveries()]
        assert row.total == 3

    @pytest.mark.shard("large")
    async def test_a_thousand_retried_at_once_are_loaded_some_at_a_time(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", window=40)
        await orders(mp, 300)
        async with taking(mp, "shipping", lambda delivery: delivery.park("odd")):
            await until(lambda: _parked(mp, 300))
        async with mp.consumer("shipping", capacity=5) as consumer:
            await mp.manage("shipping").retry(all=True)
            most = 0
            found: list[Any] = []
            while len(found) < 300:
                found += await ack(await take(consumer, 1))
                owned = consumer.dispatcher.owned
                assert owned is not None
                most = max(most, len(owned.lane._lane_memory.rows))
            assert found == list(range(1, 301))
            assert most <= 60


def _are_loaded(consumer: object, count: int) -> bool:
    owned = consumer.dispatcher.owned  # type: ignore[attr-defined]
    return owned is not None and len(owned.lane._lane_memory.rows) == count


async def test_the_back_off_goes_by_the_databases_clock(milepost_db: MilepostDB) -> None:
    mp = milepost_db.use(Milepost("postgresql://nowhere"))
    async with mp:
        await mp.create_subscription("shipping", retry=Retry(delay=300, jitter=0))
        await orders(mp, 1)
        async with mp.consumer("shipping") as consumer:
            await (await take(consumer, 1))[0].retry()
            await until(lambda: _is_retrying(mp))
            assert await is_dry(consumer)
            await milepost_db.advance(301)
            assert [(await take(consumer, 1))[0].attempt] == [2]


async def _is_retrying(mp: Milepost) -> bool:
    return (await mp.manage("shipping").info()).retrying == 1


async def test_when_everything_fails_it_stalls_and_goes_on_after_a_success(
    mp: Milepost, caplog: pytest.LogCaptureFixture
) -> None:
    # So many attempts that no message is parked while it is stalled, however long that takes.
    forever = Retry(attempts=10_000, delay=0.2, factor=1, jitter=0)
    await mp.create_subscription("shipping", stall_after=5, retry=forever)
    await orders(mp, 50)
    well = asyncio.Event()
    seen: set[int] = set()

    async def handle(delivery: object) -> None:
        if well.is_set():
            await delivery.ack()  # type: ignore[attr-defined]
            seen.add(delivery.position)  # type: ignore[attr-defined]
        else:
            await delivery.retry(reason="the carrier is down")  # type: ignore[attr-defined]

    async with taking(mp, "shipping", handle, capacity=5):
        await until(lambda: _status(mp, "stalled"))
        await until(lambda: _last_error(mp, "the carrier is down"))
        info = await mp.manage("shipping").info()
        # Only some have failed: the log has not become a heap of rows.
        assert info.retrying < 20
        well.set()
        async with asyncio.timeout(PATIENCE):
            await until(lambda: len(seen) == 50)
        await until(lambda: _status(mp, "running"))
    assert "stalled" in caplog.text
    assert "goes on: a message succeeded again" in caplog.text


async def _status(mp: Milepost, status: str) -> bool:
    return (await mp.manage("shipping").info()).status == status


async def _last_error(mp: Milepost, error: str) -> bool:
    return (await mp.manage("shipping").info()).last_error == error
