"""What listeners are told of a subscription's life."""

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

import pytest

from engine.notes import Notes
from milepost import Failed, Message, Milepost, NewMessage, Park, Retry, RetryLater, Skip, Transaction, by_function
from milepost.dispatch.retry import PROCESS_VANISHED_REASON
from milepost.engine.observe import listeners
from milepost.engine.observe.events import (
    AttemptFailed,
    Created,
    DefinitionChanged,
    Event,
    Handled,
    LaneLost,
    LaneReleased,
    LaneTaken,
    MessageEvent,
    Parked,
    Recovered,
    RetryScheduled,
    Skipped,
    Stalled,
    Started,
    Stopped,
)
from support import MakeMilepost, qualified


async def fill(mp: Milepost, count: int, streams: int = 5) -> None:
    for number in range(count):
        await mp.append(f"order-{number % streams}", NewMessage("placed", number))


async def test_the_life_of_a_healthy_subscription(mp: Milepost, notes: Notes) -> None:
    took: dict[int, float] = {}

    @mp.subscription("all", category="order", lanes=2)
    async def handle(message: Message[Any]) -> None:
        begun = monotonic()
        await asyncio.sleep(0.001)
        took[message.position] = monotonic() - begun

    await fill(mp, 3)
    begun = monotonic()
    await mp.run_until_idle()
    assert {(event.subscription, event.group) for event in notes.events} == {("all", "default")}
    kinds = [type(event) for event in notes.events]
    assert kinds == [Created, Started, *[LaneTaken] * 2, *[Handled] * 3, *[LaneReleased] * 2, Stopped]
    assert sorted((event.lane, event.position, event.vanished) for event in notes.of(LaneTaken)) == [
        (0, 0, False),
        (1, 0, False),
    ]
    assert sorted(event.lane for event in notes.of(LaneReleased)) == [0, 1]
    told = sorted((event.position, event.stream, event.attempt) for event in notes.of(Handled))
    assert told == [(1, "order-0", 1), (2, "order-1", 1), (3, "order-2", 1)]
    whole = monotonic() - begun
    assert all(took[event.position] <= event.seconds < whole for event in notes.of(Handled))
    [started], [stopped] = notes.of(Started), notes.of(Stopped)
    assert started.worker == stopped.worker


async def test_messages_that_fail(mp: Milepost, notes: Notes) -> None:
    @mp.subscription("failing", category="order", retry=Retry(attempts=2, delay=0.01, jitter=0))
    async def handle(message: Message[Any]) -> None:
        raise ValueError("no such customer")

    slack = timedelta(seconds=5)
    before = datetime.now(UTC) - slack
    await fill(mp, 1)
    async with mp.running(), asyncio.timeout(60):
        while not notes.of(Parked):
            await asyncio.sleep(0.01)
    assert notes.names == ["AttemptFailed", "RetryScheduled", "AttemptFailed", "Parked"]
    first, second = notes.of(AttemptFailed)
    assert (first.attempt, second.attempt) == (1, 2)
    assert isinstance(first.error, ValueError)
    [retry], [parked] = notes.of(RetryScheduled), notes.of(Parked)
    assert before < retry.due < datetime.now(UTC) + slack
    assert (parked.position, parked.attempt, parked.reason) == (1, 2, "ValueError: no such customer")


async def test_what_a_handler_decides(mp: Milepost, notes: Notes) -> None:
    @mp.message("typed")
    @dataclass
    class Typed:
        number: int

    @mp.subscription("choosy", category="order", types="placed")
    async def handle(message: Message[Any]) -> None:
        match message.data:
            case 0:
                raise Park("not now")
            case 1:
                raise Skip("never")
            case 2:
                raise RetryLater(3e9, reason="much later")

    @mp.subscription("typed", category="order")
    async def typed(event: Typed) -> None: ...

    await fill(mp, 4)
    await mp.append("order-9", NewMessage("typed", {"number": "x"}))
    await mp.run_until_idle()
    told = {event.position: event for event in notes.of(MessageEvent)}
    assert [type(told[position]) for position in range(1, 6)] == [Parked, Skipped, RetryScheduled, Handled, Parked]
    assert [told[position].reason for position in (1, 2, 3)] == ["not now", "never", "much later"]
    assert told[3].due.year > 2100
    assert "number" in told[5].reason


async def test_a_key_that_cannot_be_had(mp: Milepost, notes: Notes) -> None:
    def order(message: Message[Any]) -> int:
        return 10 // int(message.data)

    @mp.subscription("partitions", category="order", ordered_by=by_function(order))
    async def handle(message: Message[Any]) -> None: ...

    await fill(mp, 2)
    await mp.run_until_idle()
    [parked] = notes.of(Parked)
    assert parked.position == 1
    assert "ZeroDivisionError" in parked.reason


async def test_batches(mp: Milepost, notes: Notes) -> None:
    took: dict[int, float] = {}

    @mp.subscription("batches", category="order", batch=10, lanes=1)
    async def handle(messages: list[Message[Any]]) -> None:
        begun = monotonic()
        await asyncio.sleep(0.001)
        took.update(dict.fromkeys([message.position for message in messages], monotonic() - begun))
        odd = {message.position: Park("odd") for message in messages if message.data % 2}
        if odd:
            raise Failed(odd)

    await fill(mp, 4, streams=4)
    await mp.run_until_idle()
    assert Counter(notes.names) == {"Handled": 2, "Parked": 2}
    assert all(event.seconds >= took[event.position] for event in notes.of(Handled))


async def test_plain_handlers(mp: Milepost, notes: Notes) -> None:
    @mp.subscription("plain", category="order", retry=Retry.never)
    def handle(message: Message[Any]) -> None:
        if message.data == 3:
            raise ValueError

    await fill(mp, 50, streams=50)
    await mp.run_until_idle(errors="park")
    assert Counter(notes.names) == {"Handled": 49, "AttemptFailed": 1, "Parked": 1}
    assert all(event.seconds > 0 for event in notes.of(Handled, AttemptFailed))


async def test_exactly_once(mp: Milepost, notes: Notes) -> None:
    @mp.subscription("once", category="order", retry=Retry.never)
    async def handle(message: Message[Any], tx: Transaction) -> None:
        await tx.execute("select 1")
        if message.data == 3:
            raise ValueError

    await fill(mp, 20, streams=20)
    await mp.run_until_idle(errors="park")
    assert Counter(notes.names) == {"Handled": 19, "AttemptFailed": 1, "Parked": 1}
    assert len({event.position for event in notes.of(Handled)}) == 19


async def test_it_stalls_and_recovers(mp: Milepost, notes: Notes) -> None:
    failing = True

    @mp.subscription("s", category="order", stall_after=3, retry=Retry(delay=0.01, jitter=0), ordered_by=None)
    async def handle(message: Message[Any]) -> None:
        if failing:
            raise ValueError

    await fill(mp, 10)
    async with mp.running(), asyncio.timeout(60):
        while not notes.of(Stalled):
            await asyncio.sleep(0.01)
        failing = False
        while not notes.of(Recovered):
            await asyncio.sleep(0.01)
    assert [type(event) for event in notes.of(Stalled, Recovered)][:2] == [Stalled, Recovered]
    assert "attempts failed" in notes.of(Stalled)[0].reason


async def test_a_definition_that_changed(make_mp: MakeMilepost) -> None:
    told = []
    for category in ("order", "payment"):
        mp = make_mp()
        notes = Notes(mp)

        @mp.subscription("all", category=category)
        async def handle(message: Message[Any]) -> None: ...

        await mp.run_until_idle()
        told.append(notes)
    assert not told[0].of(DefinitionChanged)
    [event] = told[1].of(DefinitionChanged)
    assert "payment" in event.change
    assert not told[1].of(Created)


async def test_a_lane_that_another_takes(mp: Milepost, notes: Notes) -> None:
    @mp.subscription("taken", category="order", lanes=1)
    async def handle(message: Message[Any]) -> None: ...

    async with mp.running(), asyncio.timeout(60):
        while not notes.of(LaneTaken):
            await asyncio.sleep(0.01)
        take = qualified("select {0}.take((select id from {0}.subscriptions), array[0])", mp)
        await mp.log.database.execute(take, {})
        await fill(mp, 1)
        while not notes.of(LaneLost):
            await asyncio.sleep(0.01)
    assert notes.of(LaneLost)[0].lane == 0
    assert notes.of(LaneLost)[0].reason


async def test_a_message_that_is_given_up_because_its_process_vanished(mp: Milepost, notes: Notes) -> None:
    @mp.subscription("deadly", category="order", lanes=1, retry=Retry(attempts=3))
    async def handle(message: Message[Any]) -> None: ...

    await fill(mp, 1)
    await mp.run_until_idle()
    ran = qualified(
        "insert into {0}.deliveries "
        "(subscription, position, lane, attempts, total, size, revision, since, state, key, suspicion) "
        "select id, 1, 0, 2, 2, 1, 1, now(), 'running', 'order-0', 'certain' from {0}.subscriptions",
        mp,
    )
    await mp.log.database.execute(ran, {})
    await mp.log.database.execute(qualified("update {}.cursors set released = false", mp), {})
    await mp.run_until_idle()
    [parked] = notes.of(Parked)
    assert (parked.position, parked.attempt) == (1, 3)
    assert parked.reason == PROCESS_VANISHED_REASON


class TestListeners:
    async def test_an_annotation_chooses(self, mp: Milepost) -> None:
        told: dict[str, list[str]] = {"one": [], "several": [], "text": [], "any": [], "messages": []}

        @mp.on_event
        def one(event: Handled) -> None:
            told["one"].append(type(event).__name__)

        @mp.on_event
        def several(event: Created | Stopped) -> None:
            told["several"].append(type(event).__name__)

        @mp.on_event
        async def text(event: "Started") -> None:
            told["text"].append(type(event).__name__)

        @mp.on_event
        def anything(event) -> None:  # type: ignore[no-untyped-def]
            told["any"].append(type(event).__name__)

        @mp.on_event
        def messages(event: MessageEvent, more: int = 1) -> None:
            told["messages"].append(type(event).__name__)

        @mp.subscription("all", category="order", lanes=1)
        async def handle(message: Message[Any]) -> None: ...

        await fill(mp, 1)
        await mp.run_until_idle()
        assert told == {
            "one": ["Handled"],
            "several": ["Created", "Stopped"],
            "text": ["Started"],
            "any": ["Created", "Started", "LaneTaken", "Handled", "LaneReleased", "Stopped"],
            "messages": ["Handled"],
        }

    def test_what_cannot_listen_is_refused(self, make_mp: MakeMilepost) -> None:
        mp = make_mp()

        def nothing() -> None: ...

        def two(event: Event, other: int) -> None: ...

        def named(*, event: Event) -> None: ...

        def wrong(event: int) -> None: ...

        def partly(event: Handled | int) -> None: ...

        refused: list[tuple[Any, str]] = [
            (nothing, "one parameter"),
            (two, "one parameter"),
            (named, "one parameter"),
            (wrong, "milepost.events"),
            (partly, "milepost.events"),
            (3, "a function is wanted"),
        ]
        for function, said in refused:
            with pytest.raises(TypeError, match=said):
                mp.on_event(function)

    async def test_an_exception_is_logged_and_changes_nothing(
        self, mp: Milepost, notes: Notes, caplog: pytest.LogCaptureFixture
    ) -> None:
        @mp.on_event
        def plain(event: Handled) -> None:
            raise ZeroDivisionError

        @mp.on_event
        async def not_plain(event: Handled) -> None:
            raise KeyError

        @mp.subscription("all", category="order")
        async def handle(message: Message[Any]) -> None: ...

        await fill(mp, 20)
        with caplog.at_level(logging.WARNING, "milepost.events"):
            assert (await mp.run_until_idle())["all"].handled == 20
        assert len(notes.of(Handled)) == 20
        said = [record.getMessage() for record in caplog.records if record.name == "milepost.events"]
        assert len(said) == 2
        assert all("failed at Handled" in text for text in said)
        assert "ZeroDivisionError" in caplog.text

    async def test_a_slow_async_listener_delays_nobody_and_misses_some(
        self, mp: Milepost, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listeners, "MAX_WAITING_EVENTS", 10)
        monkeypatch.setattr(listeners, "LISTENER_GRACE_SECONDS", 60.0)
        heard: list[int] = []
        go_on = asyncio.Event()

        @mp.on_event
        async def slow(event: Handled) -> None:
            await go_on.wait()
            heard.append(event.position)

        @mp.subscription("all", category="order", lanes=1, ordered_by=None)
        async def handle(message: Message[Any]) -> None: ...

        await fill(mp, 50)
        handled = Notes(mp)
        async with mp.running(), asyncio.timeout(60):
            while len(handled.of(Handled)) < 50:
                await asyncio.sleep(0.01)
            assert heard == []
            go_on.set()
        # What waited was heard before the end, in order.
        assert 10 <= len(heard) <= 11
        assert heard == [event.position for event in handled.of(Handled)][: len(heard)]
        assert "is too slow" in caplog.text

    async def test_large_messages_do_not_pile_up(
        self, mp: Milepost, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listeners, "MAX_WAITING_BYTES", 100_000)
        monkeypatch.setattr(listeners, "LISTENER_GRACE_SECONDS", 60.0)
        heard: list[bool] = []
        go_on = asyncio.Event()

        @mp.on_event
        async def slow(event: MessageEvent | Stopped) -> None:
            await go_on.wait()
            heard.append(isinstance(event, MessageEvent))

        @mp.subscription("all", category="order")
        async def handle(message: Message[Any]) -> None: ...

        for number in range(20):
            await mp.append(f"order-{number}", NewMessage("placed", "x" * 30_000))
        handled = Notes(mp)
        async with mp.running(), asyncio.timeout(60):
            while len(handled.of(Handled)) < 20:
                await asyncio.sleep(0.01)
            go_on.set()
        assert 3 <= heard.count(True) <= 4
        assert heard[-1] is False
        assert "is too slow" in caplog.text

    async def test_a_listener_that_never_ends_does_not_keep_the_program(
        self, mp: Milepost, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listeners, "LISTENER_GRACE_SECONDS", 0.05)

        @mp.on_event
        async def endless(event: Handled) -> None:
            await asyncio.Event().wait()

        @mp.subscription("all", category="order")
        async def handle(message: Message[Any]) -> None: ...

        await fill(mp, 3)
        await mp.run_until_idle()
        assert "3 events are lost to it" in caplog.text

    async def test_a_plain_listener_that_blocks_is_named(
        self, mp: Milepost, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listeners, "SLOW_LISTENER_SECONDS", -1.0)

        @mp.on_event
        def blocking(event: Handled) -> None: ...

        @mp.subscription("all", category="order")
        async def handle(message: Message[Any]) -> None: ...

        await fill(mp, 3)
        await mp.run_until_idle()
        assert "blocking" in caplog.text
        assert "make it async" in caplog.text

    async def test_where_nobody_listens_nothing_is_made(self, mp: Milepost) -> None:
        @mp.subscription("all", category="order")
        async def handle(message: Message[Any]) -> None: ...

        async with mp.program().running(grace=1) as worker:
            assert worker.runners["all"].settler.emitter is None
        mp.on_event(lambda event: None)
        async with mp.program().running(grace=1) as worker:
            assert worker.runners["all"].settler.emitter is not None
