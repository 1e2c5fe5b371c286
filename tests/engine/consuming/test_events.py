"""What listeners are told of subscriptions with consumers."""

import asyncio
import logging
from collections import Counter
from time import monotonic
from typing import Any

import pytest
from psycopg import AsyncConnection

from engine.consuming.processes import Start
from engine.consuming.taking import ack, orders, take, until
from engine.notes import Notes
from engine.vanished import expire
from milepost import Message, Milepost, NewMessage, Park, Retry, RetryLater, Skip
from milepost.engine.consumers import consumer as consumers
from milepost.engine.consumers import settler
from milepost.engine.observe import listeners
from milepost.engine.observe.counters import EventCounter
from milepost.engine.observe.events import (
    AttemptFailed,
    Event,
    Handled,
    LaneLost,
    LaneReleased,
    LaneTaken,
    MessageEvent,
    Parked,
    Paused,
    Recovered,
    Resumed,
    RetryScheduled,
    Skipped,
    Stalled,
    Started,
    Stopped,
)
from support import MakeMilepost, qualified


async def test_the_life_of_a_healthy_subscription(mp: Milepost, notes: Notes) -> None:
    await mp.create_subscription("shipping")
    await orders(mp, 3)
    async with mp.consumer("shipping") as consumer:
        first, second, third = await take(consumer, 3)
        await first.ack()
        await asyncio.sleep(0.05)
        await ack([second])
        await consumer.settle(ack=[third])
    assert {(event.subscription, event.group) for event in notes.events} == {("shipping", "default")}
    kinds = [type(event) for event in notes.events]
    assert kinds == [Started, LaneTaken, *[Handled] * 3, LaneReleased, Stopped]
    [taken], [released] = notes.of(LaneTaken), notes.of(LaneReleased)
    assert (taken.lane, taken.position, taken.vanished, released.lane) == (0, 0, False, 0)
    assert released.seconds >= 0.05
    told = [(event.position, event.stream, event.attempt, event.together) for event in notes.of(Handled)]
    assert sorted(told) == [(1, "order-0", 1, 1), (2, "order-1", 1, 1), (3, "order-2", 1, 1)]
    seconds = {event.position: event.seconds for event in notes.of(Handled)}
    assert 0 < seconds[1] < seconds[2]
    assert min(seconds[2], seconds[3]) >= 0.049
    [started], [stopped] = notes.of(Started), notes.of(Stopped)
    assert started.worker == stopped.worker


async def test_the_time_begins_when_a_consumer_looks_at_it(
    mp: Milepost, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mp.create_subscription("shipping")
    await orders(mp, 1)
    async with mp.consumer("shipping") as consumer:
        await until(lambda: consumer.in_flight == 1)
        monkeypatch.setattr(consumers, "monotonic", lambda: monotonic() + 3600)
        await ack(await take(consumer, 1))
    assert [event.seconds < 3600 for event in notes.of(Handled)] == [True]


async def test_blocks_that_raise(mp: Milepost, notes: Notes) -> None:
    await mp.create_subscription("shipping", retry=Retry(attempts=2, delay=0, jitter=0))
    await orders(mp, 1)
    error = ValueError("no such customer")
    async with mp.consumer("shipping") as consumer:
        for _ in range(2):
            async with (await take(consumer, 1))[0]:
                await asyncio.sleep(0.01)
                raise error
    assert notes.names == ["AttemptFailed", "RetryScheduled", "AttemptFailed", "Parked"]
    assert [(event.attempt, event.error) for event in notes.of(AttemptFailed)] == [(1, error), (2, error)]
    assert all(event.seconds >= 0.009 for event in notes.of(AttemptFailed))
    [retry], [parked] = notes.of(RetryScheduled), notes.of(Parked)
    assert (retry.position, retry.attempt, retry.reason) == (1, 1, "ValueError: no such customer")
    assert (parked.position, parked.attempt, parked.reason) == (1, 2, "ValueError: no such customer")


async def test_what_a_consumer_decides(mp: Milepost, notes: Notes) -> None:
    await mp.create_subscription("shipping")
    await orders(mp, 7)
    async with mp.consumer("shipping") as consumer:
        park, skip, retry, *raising, both = await take(consumer, 7)
        await park.park("not now")
        await skip.skip("never")
        await retry.retry(after=600, reason="later")
        for delivery, decision in zip(raising, (Park("no"), Skip("not wanted"), RetryLater(600)), strict=True):
            async with delivery:
                raise decision
        await consumer.settle(park=[both], reason="all of them")
    # Decisions are no failures.
    assert [(type(event), event.position, event.attempt, event.reason) for event in notes.of(MessageEvent)] == [
        (Parked, 1, 1, "not now"),
        (Skipped, 2, 1, "never"),
        (RetryScheduled, 3, 1, "later"),
        (Parked, 4, 1, "no"),
        (Skipped, 5, 1, "not wanted"),
        (RetryScheduled, 6, 1, ""),
        (Parked, 7, 1, "all of them"),
    ]


async def test_what_takes_too_long_and_what_a_lost_consumer_had(
    mp: Milepost, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mp.create_subscription("shipping", retry=Retry(delay=600), timeout=0.1)
    await orders(mp, 1)
    async with mp.consumer("shipping") as consumer:
        await take(consumer, 1)
        with monkeypatch.context() as later:
            later.setattr(settler, "monotonic", lambda: monotonic() + 3600)
            await until(lambda: bool(notes.of(RetryScheduled)))
    await mp.manage("shipping").update(timeout=600)
    await orders(mp, 3)
    async with mp.consumer("shipping") as consumer:
        await take(consumer, 1)
        # What it has not looked at is no attempt.
        await until(lambda: consumer.in_flight == 3)
        consumer.lose("the connection broke")
    assert notes.names == ["AttemptFailed", "RetryScheduled"] * 2
    late, lost = notes.of(AttemptFailed)
    assert (late.position, type(late.error), lost.position, type(lost.error)) == (
        1,
        TimeoutError,
        2,
        ConnectionError,
    )
    assert late.seconds >= 3600 > lost.seconds
    assert [event.reason for event in notes.of(RetryScheduled)] == ["timed out", "the connection broke"]


async def test_what_goes_back_untried_is_not_told(mp: Milepost, notes: Notes) -> None:
    await mp.create_subscription("shipping")
    await orders(mp, 3)
    async with mp.consumer("shipping") as consumer:
        await take(consumer, 2)
    assert notes.of(MessageEvent) == []


async def test_it_stalls_and_recovers(mp: Milepost, notes: Notes) -> None:
    await mp.create_subscription("shipping", stall_after=3, retry=Retry(delay=0.01, factor=1, jitter=0))
    await orders(mp, 10)
    async with mp.consumer("shipping", capacity=3) as consumer:
        while not notes.of(Stalled):
            await (await take(consumer, 1))[0].retry()
        while not notes.of(Recovered):
            await ack(await take(consumer, 1))
            await asyncio.sleep(0.02)
    assert [type(event) for event in notes.of(Stalled, Recovered)] == [Stalled, Recovered]
    assert "attempts failed" in notes.of(Stalled)[0].reason


async def test_a_lane_that_another_takes(mp: Milepost, notes: Notes) -> None:
    await mp.create_subscription("shipping")
    async with mp.consumer("shipping") as consumer:
        take_it = qualified("select {0}.take((select id from {0}.subscriptions), array[0])", mp)
        await mp.log.database.execute(take_it, {})
        await orders(mp, 1)
        await ack(await take(consumer, 1))
        await until(lambda: bool(notes.of(LaneLost)))
        await until(lambda: len(notes.of(LaneTaken)) == 2)
    assert [type(event) for event in notes.of(LaneTaken, LaneLost, LaneReleased)] == [
        LaneTaken,
        LaneLost,
        LaneTaken,
        LaneReleased,
    ]
    [lost] = notes.of(LaneLost)
    assert lost.lane == 0
    assert lost.reason


async def test_a_lane_whose_owner_vanished(mp: Milepost, start: Start, notes: Notes) -> None:
    await mp.create_subscription("shipping", lease=60)
    await orders(mp, 1)
    gone = start("hold")
    await gone.until_got(1)
    gone.kill()
    await expire(mp, gone.pid)
    async with mp.consumer("shipping") as consumer:
        await ack(await take(consumer, 1))
    assert [event.vanished for event in notes.of(LaneTaken)] == [True]


async def test_a_message_that_is_given_up_because_its_process_vanished(mp: Milepost, notes: Notes) -> None:
    await mp.create_subscription("shipping", retry=Retry(attempts=3))
    await orders(mp, 1)
    async with mp.consumer("shipping") as consumer:
        await ack(await take(consumer, 1))
    ran = qualified(
        "insert into {0}.deliveries "
        "(subscription, position, lane, attempts, total, size, revision, since, state, suspicion) "
        "select id, 1, 0, 2, 2, 1, 1, now(), 'running', 'certain' from {0}.subscriptions",
        mp,
    )
    await mp.log.database.execute(ran, {})
    await mp.log.database.execute(qualified("update {}.cursors set released = false", mp), {})
    async with mp.consumer("shipping"):
        pass
    [parked] = notes.of(Parked)
    assert (parked.position, parked.attempt, parked.reason) == (1, 3, "its process vanished")


async def test_what_a_lost_consumer_was_only_promised_is_not_told(
    mp: Milepost, notes: Notes, database_url: str
) -> None:
    """It may have ended a process: before it goes out it has to be written down, which somebody holds up."""
    await mp.create_subscription("shipping")
    await orders(mp, 1)
    async with mp.consumer("shipping") as consumer:
        await ack(await take(consumer, 1))
    suspect = qualified(
        "insert into {0}.deliveries "
        "(subscription, position, lane, attempts, total, size, revision, since, state, due, suspicion) "
        "select id, 1, 0, 1, 1, 1, 1, now(), 'retrying', now(), 'possible' from {0}.subscriptions",
        mp,
    )
    await mp.log.database.execute(suspect, {})
    async with await AsyncConnection.connect(database_url) as holder:
        await holder.execute(qualified("lock table {}.deliveries in share row exclusive mode", mp))
        async with mp.consumer("shipping") as consumer:
            await until(lambda: consumer.in_flight == 1)
            consumer.lose("the connection broke")
            await holder.rollback()
    assert notes.names == ["Handled"]


async def test_people_pause_it_and_it_goes_on(mp: Milepost, notes: Notes) -> None:
    await mp.create_subscription("shipping")
    async with mp.consumer("shipping"):
        await mp.manage("shipping").pause()
        await mp.manage("shipping").resume()
        await until(lambda: bool(notes.of(Resumed)))
    assert [type(event) for event in notes.of(Paused, Resumed)] == [Paused, Resumed]


async def test_one_that_is_deleted_stops_once(mp: Milepost, notes: Notes) -> None:
    await mp.create_subscription("shipping")
    async with mp.consumer("shipping") as consumer:
        await mp.manage("shipping").delete()
        await until(lambda: consumer.closed is not None)
    assert [type(event) for event in notes.events] == [Started, LaneTaken, LaneReleased, Stopped]


class TestBesideHandlers:
    async def test_each_is_told_once(self, mp: Milepost, notes: Notes) -> None:
        @mp.subscription("invoices", category="order", lanes=1)
        async def handle(message: Message[Any]) -> None: ...

        counting = EventCounter(mp.on_event)
        for name in ("shipping", "letters"):
            await mp.create_subscription(name)
        async with (
            mp.running(),
            mp.consumer("shipping") as one,
            mp.consumer("shipping") as two,
            mp.consumer("letters") as letters,
        ):
            await orders(mp, 10)
            for consumer, count in ((one, 5), (two, 5), (letters, 10)):
                await ack(await take(consumer, count))
            await until(lambda: len(notes.of(Handled)) >= 30)
        told = Counter((event.subscription, event.position) for event in notes.of(Handled))
        names = ("invoices", "shipping", "letters")
        assert told == {(name, position): 1 for name in names for position in range(1, 11)}
        lives = Counter(
            (event.subscription, type(event)) for event in notes.of(Started, LaneTaken, LaneReleased, Stopped)
        )
        assert lives == {(name, kind): 1 for name in names for kind in (Started, LaneTaken, LaneReleased, Stopped)}
        figures = {of: (each.handled, sum(each.times), each.lanes) for of, each in counting.figures()}
        assert figures == {("default", name): (10, 10, 0) for name in names}

    async def test_an_async_listener_has_one_turn_for_all(self, mp: Milepost, notes: Notes) -> None:
        heard: list[str] = []
        go_on = asyncio.Event()
        at_once = most = 0

        @mp.on_event
        async def listen(event: Handled) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await go_on.wait()
            heard.append(event.subscription)
            at_once -= 1

        @mp.subscription("invoices", category="order", lanes=1)
        async def handle(message: Message[Any]) -> None: ...

        await mp.create_subscription("shipping")
        await orders(mp, 20)
        async with mp.consumer("shipping") as consumer:
            async with mp.running():
                await ack(await take(consumer, 20))
                await until(lambda: len(notes.of(Handled)) == 40)
                await asyncio.sleep(0)
                assert (at_once, heard) == (1, [])
                go_on.set()
            # Those who told it are fewer; it hears the others as before.
            await orders(mp, 5)
            await ack(await take(consumer, 5))
        # And it has heard everything when the last has gone.
        assert Counter(heard) == {"invoices": 20, "shipping": 25}
        assert most == 1

    async def test_who_cannot_end_goes_on_while_others_tell_it_something(
        self, mp: Milepost, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(listeners, "LISTENER_GRACE_SECONDS", 0.05)
        go_on = asyncio.Event()
        heard: list[str] = []

        @mp.on_event
        async def slow(event: Handled) -> None:
            await go_on.wait()
            heard.append(event.subscription)

        @mp.subscription("invoices", category="order", lanes=1)
        async def handle(message: Message[Any]) -> None: ...

        await mp.create_subscription("shipping")
        await orders(mp, 1)
        async with mp.consumer("shipping") as consumer:
            await mp.run_until_idle()
            await ack(await take(consumer, 1))
            go_on.set()
            await until(lambda: len(heard) == 2)
            go_on.clear()
            await orders(mp, 1)
            await ack(await take(consumer, 1))
        assert heard == ["invoices", "shipping"]
        assert "1 events are lost to it" in caplog.text


async def test_a_listener_that_is_declared_meanwhile_listens_from_the_next_start_on(mp: Milepost) -> None:
    await mp.create_subscription("shipping")
    await orders(mp, 2)
    async with mp.consumer("shipping") as consumer:
        notes = Notes(mp)
        await ack(await take(consumer, 1))
    assert notes.events == []
    async with mp.consumer("shipping") as consumer:
        await ack(await take(consumer, 1))
    assert [event.position for event in notes.of(Handled)] == [2]


async def test_consumers_of_another_group(make_mp: MakeMilepost) -> None:
    async with make_mp(group="sales") as sales, make_mp(group="stock") as stock:
        notes, counting = Notes(sales), EventCounter(sales.on_event)
        for mp in (sales, stock):
            await mp.create_subscription("shipping")
        await orders(sales, 2)
        for address, count in (("shipping", 2), ("stock/shipping", 1)):
            async with sales.consumer(address) as consumer:
                await ack(await take(consumer, count))
    assert Counter(event.group for event in notes.of(Handled)) == {"sales": 2, "stock": 1}
    figures = {of: (each.subscription, each.handled) for of, each in counting.figures()}
    assert figures == {("sales", "shipping"): ("shipping", 2), ("stock", "shipping"): ("shipping", 1)}


async def test_where_nobody_listens_nothing_is_made(mp: Milepost) -> None:
    await mp.create_subscription("shipping")
    await orders(mp, 3)
    async with mp.consumer("shipping") as consumer:
        assert consumer.dispatcher.emitter is None
        await ack(await take(consumer, 1))

    @mp.on_event
    def alarm(event: Parked) -> None: ...

    async with mp.consumer("shipping") as consumer:
        assert consumer.dispatcher.emitter is not None
        assert consumer.dispatcher.emitter.noted == (None, None)
        await ack(await take(consumer, 1))


async def test_a_listener_that_fails_changes_nothing(mp: Milepost, caplog: pytest.LogCaptureFixture) -> None:
    @mp.on_event
    def broken(event: Event) -> None:
        raise ZeroDivisionError

    await mp.create_subscription("shipping")
    await mp.append("order-1", [NewMessage("placed"), NewMessage("placed")])
    with caplog.at_level(logging.WARNING, "milepost.events"):
        async with mp.consumer("shipping") as consumer:
            first, second = await take(consumer, 2)
            await first.ack()
            await second.park("not now")
    info = await mp.manage("shipping").info()
    assert (info.lag.positions, info.parked) == (0, 1)
    assert "ZeroDivisionError" in caplog.text
