"""What listeners are told of messages that were handled: of each, or of many together."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

import pytest

from milepost import Failed, Message, Milepost, NewMessage, Park, Retry, Transaction, by_function
from milepost.engine.handlers import handler_loop
from milepost.engine.observe import listeners
from milepost.engine.observe.counters import HISTOGRAM_BOUNDS_SECONDS, EventCounter, SubscriptionCounters
from milepost.engine.observe.events import AttemptFailed, Handled, HandledSeveral, MessageEvent, Parked

COUNT = 60


async def fill(mp: Milepost, streams: int = 7) -> None:
    for number in range(COUNT):
        await mp.append(f"order-{number % streams}", NewMessage("placed", number))


def on_the_loop(mp: Milepost) -> None:
    @mp.subscription("all", category="order")
    async def handle(message: Message[Any]) -> None: ...


def in_threads(mp: Milepost) -> None:
    @mp.subscription("all", category="order")
    def handle(message: Message[Any]) -> None: ...


def in_batches(mp: Milepost) -> None:
    @mp.subscription("all", category="order", batch=10)
    async def handle(messages: list[Message[Any]]) -> None: ...


def in_batches_that_fail_in_part(mp: Milepost) -> None:
    @mp.subscription("all", category="order", batch=10, ordered_by=None)
    async def handle(messages: list[Message[Any]]) -> None:
        odd = {message.position: Park("odd") for message in messages if message.data % 2}
        if odd:
            raise Failed(odd)


def exactly_once(mp: Milepost) -> None:
    @mp.subscription("all", category="order")
    async def handle(message: Message[Any], tx: Transaction) -> None: ...


shapes = pytest.mark.parametrize(
    "declare", [on_the_loop, in_threads, in_batches, in_batches_that_fail_in_part, exactly_once]
)


class Told:
    """One listener of `Handled`, or of `HandledSeveral`, or both."""

    def __init__(self, mp: Milepost, *, each: bool, several: bool) -> None:
        self.each: list[Handled] = []
        self.several: list[HandledSeveral] = []
        if each:
            mp.on_event(self._note)
        if several:
            mp.on_event(self._count)

    def _note(self, event: Handled) -> None:
        self.each.append(event)

    def _count(self, event: HandledSeveral) -> None:
        self.several.append(event)

    @property
    def shares(self) -> list[float]:
        """What each message took, by its own event."""
        return sorted(event.seconds / event.together for event in self.each)

    @property
    def times(self) -> list[float]:
        """What each message took, by the events of several."""
        return sorted(seconds for event in self.several for seconds in event.seconds)


class Clock:
    """Stands still, unless somebody says what takes time."""

    def __init__(self) -> None:
        self.now = float(round(monotonic()))

    def __call__(self) -> float:
        return self.now

    def takes(self, seconds: float) -> None:
        self.now += seconds


MOMENT = 2**-14
"""A time that is short beside a turn, and of which sums are exact."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of turns."""
    clock = Clock()
    monkeypatch.setattr(handler_loop, "monotonic", clock)
    return clock


@pytest.mark.shard("variants", fast=["in_batches", "exactly_once"])
@shapes
async def test_both_tell_the_same(mp: Milepost, declare: Callable[[Milepost], None]) -> None:
    declare(mp)
    told = Told(mp, each=True, several=True)
    await fill(mp)
    report = await mp.run_until_idle(errors="park")
    assert len({event.position for event in told.each}) == len(told.each) == report["all"].handled
    assert told.times == told.shares
    assert all(event.seconds for event in told.several)
    assert {(event.subscription, event.group) for event in told.several} == {("all", "default")}


@pytest.mark.shard("variants", fast=["in_threads", "exactly_once"])
@shapes
async def test_either_is_told_alone(mp: Milepost, declare: Callable[[Milepost], None]) -> None:
    declare(mp)
    told = Told(mp, each=True, several=False)
    await fill(mp)
    report = await mp.run_until_idle(errors="park")
    assert len({event.position for event in told.each}) == len(told.each) == report["all"].handled


@pytest.mark.shard("variants", fast=["on_the_loop", "in_batches_that_fail_in_part"])
@shapes
async def test_who_counts_is_told_of_all(mp: Milepost, declare: Callable[[Milepost], None]) -> None:
    declare(mp)
    told = Told(mp, each=False, several=True)
    await fill(mp)
    report = await mp.run_until_idle(errors="park")
    assert len(told.times) == report["all"].handled


async def test_many_are_told_of_together(mp: Milepost, clock: Clock) -> None:
    """A turn lasts as long as nothing takes time, and its messages are told of together."""

    @mp.subscription("all", category="order", ordered_by=None, lanes=1)
    async def handle(message: Message[Any]) -> None: ...

    told = Told(mp, each=False, several=True)
    await mp.append("order-1", [NewMessage("placed", number) for number in range(COUNT)])
    await mp.run_until_idle()
    assert len(told.times) == COUNT
    assert max(len(event.seconds) for event in told.several) > 1


@pytest.mark.parametrize(
    ("each", "several", "noted"),
    [(False, False, (None, None)), (False, True, ([], None)), (True, False, ([], []))],
)
async def test_only_what_is_wanted_is_noted(mp: Milepost, each: bool, several: bool, noted: Any) -> None:
    on_the_loop(mp)
    Told(mp, each=each, several=several)

    @mp.on_event
    def alarm(event: Parked) -> None: ...

    async with mp.program().running(grace=1) as worker:
        emitter = worker.runners["all"].settler.emitter
        assert emitter is not None
        assert emitter.noted == noted


async def test_a_listener_alone_that_fails_hears_the_rest(mp: Milepost, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[int] = []

    @mp.on_event
    def broken(event: Handled) -> None:
        heard.append(event.position)
        if event.position % 2:
            raise ZeroDivisionError

    on_the_loop(mp)
    await fill(mp)
    with caplog.at_level(logging.WARNING, "milepost.events"):
        assert (await mp.run_until_idle())["all"].handled == COUNT
    assert sorted(heard) == list(range(1, COUNT + 1))
    assert "failed at Handled" in caplog.text


async def test_an_async_listener_alone_hears_of_each(mp: Milepost) -> None:
    heard: list[int] = []

    @mp.on_event
    async def listen(event: Handled) -> None:
        heard.append(event.position)

    on_the_loop(mp)
    await fill(mp)
    await mp.run_until_idle()
    assert sorted(heard) == list(range(1, COUNT + 1))


async def test_times_do_not_pile_up(
    mp: Milepost, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An async listener that does not follow misses some, however many messages an event is of."""
    monkeypatch.setattr(listeners, "MAX_WAITING_BYTES", 1)
    heard: list[HandledSeveral] = []

    @mp.on_event
    async def listen(event: HandledSeveral) -> None:
        heard.append(event)

    audience = mp._listeners.audience()
    assert audience is not None
    audience.tell(HandledSeveral("all", "default", [0.1] * 10))
    audience.tell(HandledSeveral("all", "default", [0.2] * 10))
    await audience.close()
    assert [event.seconds for event in heard] == [[0.1] * 10]
    assert "is too slow" in caplog.text


async def test_the_time_of_a_message_is_its_own(mp: Milepost, clock: Clock) -> None:
    """What lies between two calls is nobody's: looking for messages, settling, listeners, the key of another."""
    took: dict[int, float] = {}

    def key(message: Message[Any]) -> str:
        if message.data % 10 == 7:
            clock.takes(MOMENT)
            raise ValueError
        return message.stream

    @mp.on_event
    def listen(event: MessageEvent) -> None:
        clock.takes(MOMENT)
        if isinstance(event, Handled | AttemptFailed):
            took[event.message.data] = event.seconds

    options: dict[str, Any] = {"timeout": 600, "retry": Retry.never, "on_park": "continue", "lanes": 1}

    @mp.subscription("all", category="order", ordered_by=by_function(key), **options)
    async def handle(message: Message[Any]) -> None:
        clock.takes(MOMENT * (message.data % 3))
        if message.data % 10 == 5:
            raise ValueError

    await fill(mp, streams=20)
    await mp.run_until_idle(errors="park")
    assert took == {number: MOMENT * (number % 3) for number in range(COUNT) if number % 10 != 7}


async def test_the_time_of_a_thread_is_not_that_of_the_next_message(mp: Milepost, clock: Clock) -> None:
    @mp.message()
    @dataclass
    class Slow:
        number: int

    @mp.message()
    @dataclass
    class Quick:
        number: int

    orders = mp.subscription("all", category="order", ordered_by=None, lanes=1, timeout=600)

    @orders.on
    def in_a_thread(message: Message[Slow]) -> None:
        clock.takes(MOMENT)

    @orders.on
    async def here(message: Message[Quick]) -> None: ...

    told = Told(mp, each=True, several=False)
    await mp.append("order-1", [kind(number) for number in range(COUNT) for kind in (Slow, Quick)])
    await mp.run_until_idle()
    assert [event.seconds for event in told.each if event.message.type == "Quick"] == [0.0] * COUNT


def test_times_are_counted_up_to_their_bounds() -> None:
    figures = SubscriptionCounters("all")
    for several in (
        [0.0],
        [HISTOGRAM_BOUNDS_SECONDS[0], HISTOGRAM_BOUNDS_SECONDS[0]],
        [
            HISTOGRAM_BOUNDS_SECONDS[0],
            HISTOGRAM_BOUNDS_SECONDS[1],
            HISTOGRAM_BOUNDS_SECONDS[-1],
            HISTOGRAM_BOUNDS_SECONDS[-1] + 1,
        ],
    ):
        figures.took(several)
    assert figures.times == [4, 1, *[0] * (len(HISTOGRAM_BOUNDS_SECONDS) - 3), 1, 1]
    assert figures.seconds == pytest.approx(
        3 * HISTOGRAM_BOUNDS_SECONDS[0] + HISTOGRAM_BOUNDS_SECONDS[1] + 2 * HISTOGRAM_BOUNDS_SECONDS[-1] + 1
    )


@shapes
async def test_what_is_counted(mp: Milepost, declare: Callable[[Milepost], None]) -> None:
    declare(mp)
    counting = EventCounter(mp.on_event)
    await fill(mp)
    report = await mp.run_until_idle(errors="park")
    [(of, figures)] = counting.figures()
    assert of == ("default", "all")
    assert figures.handled == sum(figures.times) == report["all"].handled
