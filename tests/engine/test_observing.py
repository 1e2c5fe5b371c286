"""What can be seen of a program while it works: durations, instruments, and what is logged."""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from time import monotonic
from typing import Any

import pytest

from milepost import (
    Appended,
    Context,
    Failed,
    Message,
    Milepost,
    NewMessage,
    Park,
    Retry,
    RetryLater,
    Skip,
    Transaction,
    by_function,
)
from milepost.engine import subscription_logger
from milepost.engine.declare.handler import CallEnd
from milepost.engine.observe.counters import HISTOGRAM_BOUNDS_SECONDS, EventCounter, SubscriptionCounters
from milepost.engine.observe.events import (
    AttemptFailed,
    Event,
    Handled,
    LaneLost,
    LaneReleased,
    LaneTaken,
    Recovered,
    Stalled,
)
from milepost.log import append as instruments
from milepost.log.append import AppendEnd, AppendPayloads
from milepost.throttled_warnings import ThrottledWarnings
from patience import within
from support import MakeMilepost, qualified


@pytest.fixture
def events(mp: Milepost) -> list[Event]:
    """Everything that happens."""
    told: list[Event] = []

    @mp.on_event
    def note(event: Event) -> None:
        told.append(event)

    return told


def of(events: list[Event], *kinds: type[Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kinds)]


async def until(events: list[Event], kind: type[Event], count: int = 1) -> None:
    async with within(40, lambda: f"{events}, wanted {count} {kind.__name__}"):
        while len(of(events, kind)) < count:
            await asyncio.sleep(0.01)


async def fill(mp: Milepost, count: int, streams: int = 5) -> None:
    for number in range(count):
        await mp.append(f"order-{number % streams}", NewMessage("placed", number))


class TestDurations:
    async def test_how_long_a_lane_was_held(self, mp: Milepost, events: list[Event]) -> None:
        @mp.subscription("all", category="order", lanes=2)
        async def handle(message: Message[Any]) -> None:
            begun = monotonic()
            await asyncio.sleep(0.001)
            took.append(monotonic() - begun)

        took: list[float] = []
        await fill(mp, 2)
        begun = monotonic()
        await mp.run_until_idle()
        whole = monotonic() - begun
        released = of(events, LaneReleased)
        assert len(released) == 2
        assert max(took) <= max(event.seconds for event in released)
        assert all(0 < event.seconds < whole for event in released)

    async def test_a_lane_is_lost_once_however_often_that_is_found_out(
        self, mp: Milepost, events: list[Event]
    ) -> None:
        going_on, go_on = asyncio.Event(), asyncio.Event()

        @mp.subscription("taken", category="order", lanes=1)
        async def handle(message: Message[Any]) -> None:
            going_on.set()
            await go_on.wait()

        await fill(mp, 1)
        async with mp.running():
            await going_on.wait()
            take = qualified("select {0}.take((select id from {0}.subscriptions), array[0])", mp)
            await mp.log.database.execute(take, {})
            # The hand-over at the end and the write of what was handled both find another owner.
            go_on.set()
        lost = of(events, LaneLost)
        assert [event.lane for event in lost] == [0]
        assert lost[0].seconds > 0
        assert not of(events, LaneReleased)

    async def test_how_long_it_was_stalled(self, mp: Milepost, events: list[Event]) -> None:
        @mp.subscription("s", category="order", stall_after=3, retry=Retry(delay=0.01, jitter=0), ordered_by=None)
        async def handle(message: Message[Any]) -> None:
            if not of(events, Stalled):
                raise ValueError

        await fill(mp, 10)
        begun = monotonic()
        async with mp.running():
            await until(events, Recovered)
        assert 0 < of(events, Recovered)[0].seconds < monotonic() - begun

    async def test_messages_that_share_their_time_say_with_how_many(
        self, mp: Milepost, events: list[Event]
    ) -> None:
        @mp.subscription("batches", category="order", batch=10, lanes=1)
        async def batches(messages: list[Message[Any]]) -> None: ...

        @mp.subscription("partly", category="order", batch=10, lanes=1, retry=Retry.never)
        async def partly(messages: list[Message[Any]]) -> None:
            raise Failed({message.position: ValueError() for message in messages if message.data == 3})

        @mp.subscription("once", category="order", lanes=1)
        async def once(message: Message[Any], tx: Transaction) -> None: ...

        @mp.subscription("single", category="order", lanes=1)
        async def single(message: Message[Any]) -> None: ...

        @mp.subscription("plain", category="order", lanes=1)
        def plain(message: Message[Any]) -> None: ...

        await fill(mp, 4, streams=4)
        await mp.run_until_idle(errors="park")
        told = Counter((event.subscription, event.together) for event in of(events, Handled, AttemptFailed))
        assert told == {
            ("batches", 4): 4,
            ("partly", 4): 4,
            ("once", 4): 4,
            ("single", 1): 4,
            ("plain", 1): 4,
        }


def ended(figures: SubscriptionCounters) -> int:
    """How many messages something came of."""
    return figures.handled + figures.parked + figures.skipped + figures.retried


class TestCounting:
    async def test_what_is_counted(self, mp: Milepost, events: list[Event]) -> None:
        counting = EventCounter(mp.on_event)

        @mp.subscription("single", category="order", lanes=2, retry=Retry(attempts=2, delay=600))
        async def single(message: Message[Any]) -> None:
            match message.data:
                case 0:
                    raise Park("not now")
                case 1:
                    raise Skip("never")
                case 2:
                    raise ValueError

        @mp.subscription("batches", category="order", batch=100, lanes=1)
        async def batches(messages: list[Message[Any]]) -> None:
            begun = monotonic()
            await asyncio.sleep(0.001)
            took.append(monotonic() - begun)

        took: list[float] = []
        await fill(mp, 20, streams=20)
        assert counting.figures() == []
        async with mp.running():
            async with asyncio.timeout(40):
                while sum(map(ended, (figures for _, figures in counting.figures()))) < 40:
                    await asyncio.sleep(0.01)
            assert {of: figures.lanes for of, figures in counting.figures()} == {
                ("default", "single"): 2,
                ("default", "batches"): 1,
            }
        found = dict(counting.figures())
        single_, batches_ = found["default", "single"], found["default", "batches"]
        assert (single_.handled, single_.parked, single_.skipped) == (17, 1, 1)
        assert (single_.failed, single_.retried, single_.lost, single_.lanes) == (1, 1, 0, 0)
        assert sum(single_.times) == 18
        assert (batches_.handled, sum(batches_.times)) == (20, 20)
        # The time of a batch is not counted again for each of its messages.
        told = [event for event in of(events, Handled) if event.subscription == "batches"]
        assert batches_.seconds == pytest.approx(sum(event.seconds / event.together for event in told))
        assert batches_.seconds >= sum(took)

    def test_processes_are_added_up(self) -> None:
        one = SubscriptionCounters(
            "a", handled=1, failed=2, retried=3, parked=4, skipped=5, lost=6, lanes=7, seconds=0.5
        )
        one.times[3] = 1
        other = SubscriptionCounters(
            "a", handled=10, failed=20, retried=30, parked=40, skipped=50, lost=60, lanes=70, seconds=5
        )
        other.times[3], other.times[-1] = 2, 3
        one.add(other)
        assert one == SubscriptionCounters("a", 11, 22, 33, 44, 55, 66, 77, 5.5, one.times)
        assert (one.times[3], one.times[-1], len(one.times)) == (3, 3, len(HISTOGRAM_BOUNDS_SECONDS) + 1)


colour: ContextVar[str] = ContextVar("colour", default="none")


class Painter:
    """Gives each call and each append a colour, and notes how they ended."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, ...]] = []
        self.ended: list[str] = []
        self.contexts: list[Context] = []
        self.appended: list[tuple[str, bool, int]] = []

    def handling(self, messages: Sequence[Message[Any]], context: Context, *, batch: bool) -> CallEnd:
        assert batch is (context.subscription == "batches")
        self.begun.append(tuple(message.position for message in messages))
        self.contexts.append(context)
        token = colour.set(f"{context.subscription} {messages[0].position}")

        def end(error: BaseException | None) -> None:
            colour.reset(token)
            self.ended.append(type(error).__name__)

        return end

    def appending(self, payloads: AppendPayloads, carrier: dict[str, str], *, sends: bool) -> AppendEnd:
        carrier["colour"] = colour.get()
        [(stream, messages)] = payloads

        def end(appended: Sequence[Appended], error: BaseException | None) -> None:
            position = appended[-1].position if appended else 0
            self.appended.append((f"{stream} {len(messages)} {type(error).__name__}", sends, position))

        return end


class TestInstruments:
    async def test_it_surrounds_every_kind_of_call(self, mp: Milepost) -> None:
        painter = Painter()
        mp.instrument(painter)
        seen: dict[str, set[str]] = {}

        def look(name: str) -> None:
            seen.setdefault(name, set()).add(colour.get())

        @mp.subscription("async", category="order")
        async def on_the_loop(message: Message[Any]) -> None:
            await asyncio.sleep(0)
            look("async")

        @mp.subscription("plain", category="order")
        def in_a_thread(message: Message[Any]) -> None:
            assert threading.current_thread() is not threading.main_thread()
            look("plain")

        @mp.subscription("batches", category="order", lanes=1)
        def batches(messages: list[Message[Any]]) -> None:
            look("batches")

        @mp.subscription("once", category="order")
        async def once(message: Message[Any], tx: Transaction, context: Context) -> None:
            look("once")
            assert (context.group, context.stream) == ("default", message.stream)

        await fill(mp, 2)
        await mp.run_until_idle()
        assert seen == {
            "async": {"async 1", "async 2"},
            "plain": {"plain 1", "plain 2"},
            "batches": {"batches 1"},
            "once": {"once 1", "once 2"},
        }
        assert sorted(painter.begun) == [(1,)] * 3 + [(1, 2)] + [(2,)] * 3
        assert painter.ended == ["NoneType"] * 7
        assert colour.get() == "none"

    async def test_it_learns_how_a_call_ended(self, mp: Milepost) -> None:
        painter = Painter()
        mp.instrument(painter)

        @mp.subscription("failing", category="order", timeout=0.1, retry=Retry.never)
        async def failing(message: Message[Any]) -> None:
            match message.data:
                case 0:
                    raise ValueError
                case 1:
                    raise Skip
                case 2:
                    await asyncio.Event().wait()

        await fill(mp, 3)
        await mp.run_until_idle(errors="park")
        assert sorted(painter.ended) == ["CancelledError", "Skip", "ValueError"]
        assert [context.attempt for context in painter.contexts] == [1, 1, 1]

    async def test_it_surrounds_appends_and_sends_something_along(self, mp: Milepost) -> None:
        painter = Painter()
        mp.instrument(painter)

        @mp.subscription("once", category="order", lanes=1)
        async def once(message: Message[Any], tx: Transaction) -> None:
            await tx.append("receipt-1", NewMessage("due"))
            await mp.append("other-1", NewMessage("due"))

        await mp.append("order-1", NewMessage("placed", metadata={"user": 1}))
        with pytest.raises(Exception, match="at version"):
            await mp.append("order-1", [NewMessage("a"), NewMessage("b")], expected=9)
        await mp.run_until_idle()
        assert painter.appended == [
            ("order-1 1 NoneType", True, 1),
            ("order-1 2 WrongVersion", True, 0),
            ("receipt-1 1 NoneType", False, 0),
            ("other-1 1 NoneType", True, 2),
        ]
        found = {message.stream: message.metadata async for message in mp.read()}
        assert found == {
            "order-1": {"user": 1, "colour": "none"},
            "receipt-1": {"colour": "once 1"},
            "other-1": {"colour": "once 1"},
        }

    async def test_several_are_nested(self, mp: Milepost) -> None:
        steps: list[str] = []

        class Noting:
            def __init__(self, name: str) -> None:
                self._name = name

            def handling(self, *_: object, **__: object) -> CallEnd:
                steps.append(f"{self._name} handling")
                return lambda _: steps.append(f"{self._name} handled")

            def appending(self, *_: object, **__: object) -> AppendEnd:
                steps.append(f"{self._name} appending")
                return lambda *_: steps.append(f"{self._name} appended")

        mp.instrument(Noting("first"))
        mp.instrument(Noting("second"))

        @mp.subscription("all", category="order")
        async def handle(message: Message[Any]) -> None:
            steps.append("handle")

        await fill(mp, 1)
        await mp.run_until_idle()
        assert steps == [
            "first appending",
            "second appending",
            "second appended",
            "first appended",
            "first handling",
            "second handling",
            "handle",
            "second handled",
            "first handled",
        ]

    @pytest.mark.parametrize("fails_at", ["begin", "end"])
    async def test_what_it_raises_changes_nothing(
        self, fails_at: str, mp: Milepost, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fresh = ThrottledWarnings(logging.getLogger("milepost.instruments"), "an instrument")
        monkeypatch.setattr(instruments.instrument_warnings, "warn", fresh.warn)

        class Broken:
            def handling(self, *_: object, **__: object) -> CallEnd:
                return self._ended()

            def appending(self, *_: object, **__: object) -> AppendEnd:
                return self._ended()

            def _ended(self) -> Callable[..., None]:
                if fails_at == "begin":
                    raise ZeroDivisionError

                def ended(*_: object) -> None:
                    raise ZeroDivisionError

                return ended

        @mp.subscription("all", category="order", retry=Retry.never)
        async def handle(message: Message[Any]) -> None:
            if message.data == 3:
                raise KeyError("the handler's own")

        @mp.subscription("plain", category="order", retry=Retry.never)
        def plain(message: Message[Any], context: Context) -> None: ...

        mp.instrument(Broken())
        await fill(mp, 10)
        report = await mp.run_until_idle(errors="park")
        assert [(tally.handled, tally.parked) for tally in report.values()] == [(8, 1), (10, 0)]
        assert [record.name for record in caplog.records if "instrument" in record.getMessage()] == [
            "milepost.instruments"
        ]
        assert "ZeroDivisionError" in caplog.text

    async def test_without_one_a_handler_is_called_as_it_is(self, make_mp: MakeMilepost) -> None:
        mp = make_mp()

        @mp.subscription("all", category="order")
        async def handle(message: Message[Any]) -> None: ...

        [subscription] = mp.declared()
        assert subscription.handlers[0].call is handle
        assert not subscription.handlers[0].takes_context
        mp.instrument(Painter())
        [subscription] = mp.declared()
        assert subscription.handlers[0].call is not handle


class TestLogging:
    async def test_a_message_that_fails_until_it_is_parked(
        self, mp: Milepost, events: list[Event], caplog: pytest.LogCaptureFixture
    ) -> None:
        @mp.subscription("fail%d {ing}", category="order", retry=Retry(attempts=3, delay=0.01, jitter=0), lanes=1)
        async def handle(message: Message[Any]) -> None:
            raise ValueError("no such customer: 100%")

        with caplog.at_level(logging.INFO, "milepost"):
            await mp.append("order-%s", NewMessage("placed"))
            async with mp.running():
                async with asyncio.timeout(40):
                    while not any(record.levelno == logging.ERROR for record in caplog.records):
                        await asyncio.sleep(0.01)
        records = [record for record in caplog.records if record.name == "milepost.engine"]
        assert [(record.levelname, fields(record)) for record in records] == [
            (
                level,
                {
                    "subscription": "fail%d {ing}",
                    "group": "default",
                    "position": 1,
                    "stream": "order-%s",
                    "attempt": attempt,
                },
            )
            for attempt, level in ((1, "WARNING"), (2, "INFO"), (3, "ERROR"))
        ]
        assert [record.getMessage().partition(": position")[0] for record in records] == ["fail%d {ing}"] * 3
        assert "failed at attempt 1, the next follows in 0 s: ValueError: no such customer: 100%" in caplog.text
        assert "position 1 of order-%s: parked at attempt 3: ValueError" in caplog.text
        assert [record.exc_info is not None for record in records] == [True, False, False]

    async def test_many_failures_from_one_line_have_one_traceback(
        self, mp: Milepost, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        @mp.subscription("failing", category="order", retry=Retry.never, ordered_by=None)
        async def handle(message: Message[Any]) -> None:
            if message.data % 2:
                raise ValueError(message.data)
            raise KeyError(message.data)

        await fill(mp, 20)
        await mp.run_until_idle(errors="park")
        records = [record for record in caplog.records if record.name == "milepost.engine"]
        assert Counter(record.levelname for record in records) == {"ERROR": 20}
        assert sum(record.exc_info is not None for record in records) == 2
        caplog.clear()
        monkeypatch.setattr(subscription_logger, "TRACEBACK_INTERVAL_SECONDS", 0.0)
        await fill(mp, 20)
        await mp.run_until_idle(errors="park")
        assert all(record.exc_info is not None for record in caplog.records if record.name == "milepost.engine")

    async def test_what_a_handler_decides(self, mp: Milepost, caplog: pytest.LogCaptureFixture) -> None:
        @mp.subscription("choosy", category="order", ordered_by=None)
        async def handle(message: Message[Any]) -> None:
            raise [Park("not now"), Skip("never"), RetryLater(600, reason="later")][message.data]

        await fill(mp, 3)
        with caplog.at_level(logging.DEBUG, "milepost.engine"):
            await mp.run_until_idle()
        found = {record.getMessage(): record for record in caplog.records if record.name == "milepost.engine"}
        assert {
            text.partition(": ")[2]: (record.levelname, record.exc_info) for text, record in found.items()
        } == {
            "position 1 of order-0: parked at attempt 1: not now": ("ERROR", None),
            "position 2 of order-1: skipped: never": ("DEBUG", None),
            "position 3 of order-2: put off at attempt 1, the next follows in 600 s: later": ("DEBUG", None),
        }

    async def test_other_ways_of_being_parked(self, mp: Milepost, caplog: pytest.LogCaptureFixture) -> None:
        @mp.subscription("partitions", category="order", ordered_by=by_function(lambda message: 1 // message.data))
        async def handle(message: Message[Any]) -> None: ...

        await fill(mp, 1)
        await mp.run_until_idle()
        [record] = [record for record in caplog.records if record.name == "milepost.engine"]
        assert (record.levelname, fields(record)["position"]) == ("ERROR", 1)
        assert "ZeroDivisionError" in record.getMessage()

    async def test_it_stalls_and_goes_on(
        self, mp: Milepost, events: list[Event], caplog: pytest.LogCaptureFixture
    ) -> None:
        @mp.subscription("s", category="order", stall_after=3, retry=Retry(delay=0.01, jitter=0), ordered_by=None)
        async def handle(message: Message[Any]) -> None:
            if not of(events, Stalled):
                raise ValueError

        await fill(mp, 10)
        async with mp.running():
            await until(events, Recovered)
        said = [
            (record.levelname, record.getMessage(), fields(record))
            for record in caplog.records
            if "position" not in fields(record)
        ]
        [stalled, recovered] = said[:2]
        assert stalled[0] == "ERROR"
        assert stalled[1].startswith("s: stalled: ")
        assert recovered[:2] == ("WARNING", "s: goes on: a message succeeded again")
        assert stalled[2] == recovered[2] == {"subscription": "s", "group": "default"}

    async def test_a_lane_that_is_lost(
        self, mp: Milepost, events: list[Event], caplog: pytest.LogCaptureFixture
    ) -> None:
        @mp.subscription("taken", category="order", lanes=1)
        async def handle(message: Message[Any]) -> None: ...

        async with mp.running():
            await until(events, LaneTaken)
            take = qualified("select {0}.take((select id from {0}.subscriptions), array[0])", mp)
            await mp.log.database.execute(take, {})
            await fill(mp, 1)
            await until(events, LaneLost)
        [record] = [record for record in caplog.records if "is lost" in record.getMessage()]
        assert record.levelname == "WARNING"
        assert fields(record) == {"subscription": "taken", "group": "default", "lane": 0}

    async def test_the_logger_of_a_handler(self, make_mp: MakeMilepost, caplog: pytest.LogCaptureFixture) -> None:
        async with make_mp(group="billing") as mp:

            @mp.subscription("invoices", category="order")
            async def handle(message: Message[Any], context: Context) -> None:
                context.logger.info("sent %s", "it", extra={"invoice": 7})

            with caplog.at_level(logging.INFO, "milepost.subscription"):
                await fill(mp, 1)
                await mp.run_until_idle()
        [record] = [record for record in caplog.records if record.name == "milepost.subscription.invoices"]
        assert record.getMessage() == "sent it"
        assert fields(record) == {
            "subscription": "invoices",
            "group": "billing",
            "position": 1,
            "stream": "order-0",
            "attempt": 1,
            "invoice": 7,
        }


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """What a record has beside what every record has."""
    usual = logging.LogRecord("", 0, "", 0, "", (), None).__dict__.keys() | {"message", "asctime", "taskName"}
    return {name: value for name, value in record.__dict__.items() if name not in usual}
