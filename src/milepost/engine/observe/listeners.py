"""The functions that `mp.on_event` declares, and how they get their events."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from contextvars import copy_context
from time import monotonic
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from milepost.concurrency import cancel_and_wait
from milepost.engine.context_variables import call_in_copied_context
from milepost.engine.declare.signature import EMPTY, Function, UserFunction
from milepost.engine.observe.events import Attempt, Event, Handled, HandledSeveral, ListenerEvent, MessageEvent
from milepost.throttled_warnings import ThrottledWarnings

logger = logging.getLogger("milepost.events")

F = TypeVar("F", bound=Function)

MAX_WAITING_EVENTS = 10_000
"""How many events may wait for an async listener; further ones it does not get."""
MAX_WAITING_BYTES = 8 * 2**20
"""How many bytes of messages may wait with them."""
DURATION_BYTES = 32
"""What one of the times of `HandledSeveral` takes."""
SLOW_LISTENER_SECONDS = 0.1
"""Seconds after which a plain listener is complained of: nothing else runs on the loop meanwhile."""
LISTENER_GRACE_SECONDS = 5.0
"""Seconds that async listeners have for what still waits when a program stops."""


class Listener:
    """A function of one parameter, whose annotation says of which events it is told."""

    def __init__(self, given: Any) -> None:
        self.described = UserFunction(given)
        self.classes = _event_classes(self.described)
        self.function = self.described.function
        self._runner: _ListenerRunner | None = None

    def runner(self) -> "_ListenerRunner":
        """Where it hears, until whoever asked closes it: one for all that work at a time, as it has one turn."""
        loop = asyncio.get_running_loop()
        if self._runner is None or not self._runner.users or self._runner.loop is not loop:
            self._runner = (_AsyncListenerRunner if self.described.is_async else _ListenerRunner)(self, loop)
        self._runner.users += 1
        return self._runner


class Listeners:
    """All listeners of a program."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def add(self, function: F) -> F:
        """One more; the function stays as it is."""
        self._listeners.append(Listener(function))
        return function

    def adopt(self, other: "Listeners") -> None:
        """Those of another listen as well."""
        self._listeners += other._listeners

    def audience(self) -> "ActiveListeners | None":
        """Those who listen from now on; None if nobody does."""
        return ActiveListeners(self._listeners) if self._listeners else None


class ActiveListeners:
    """Listeners while a worker runs, or consumers of a subscription are here.

    A plain one is called at once, on the event loop. An async one gets its events one after the other, whoever
    tells them, in a task of its own: it delays nobody, and when it cannot follow it misses some.
    """

    def __init__(self, listeners: list[Listener]) -> None:
        self._listeners = listeners
        self._runners = [(listener.classes, listener.runner()) for listener in listeners]
        self._by_class: dict[type[ListenerEvent], list[_ListenerRunner]] = {}

    def admit(self) -> None:
        """Those who came to the program since then listen as well."""
        late = self._listeners[len(self._runners) :]
        if late:
            self._runners += [(listener.classes, listener.runner()) for listener in late]
            self._by_class.clear()

    def wants(self, kind: type[ListenerEvent]) -> bool:
        """Whether anybody listens to such events."""
        return bool(self._those_for(kind))

    def tell(self, *events: ListenerEvent) -> None:
        """Tells everybody who listens to events of this kind. Nothing that a listener raises comes back."""
        for runner in self._those_for(type(events[0])):
            # What a listener sets is for itself: handlers are called in copies of the context that this is in.
            copy_context().run(runner.call, events)

    def tell_handled(self, subscription: str, group: str, each: Iterable[tuple[Attempt, float]]) -> None:
        """Tells `Handled` of messages, with how long each took."""
        runners = self._those_for(Handled)
        if len(runners) == 1:
            copy_context().run(runners[0].call_handled, subscription, group, each)
        else:
            self.tell(*[Handled(subscription, group, one.message, one.attempt, took) for one, took in each])

    def _those_for(self, kind: type[ListenerEvent]) -> "list[_ListenerRunner]":
        found = self._by_class.get(kind)
        if found is None:
            found = self._by_class[kind] = [
                runner for classes, runner in self._runners if issubclass(kind, classes)
            ]
        return found

    async def close(self) -> None:
        """Lets async listeners end with what waits for them, for a while."""
        await asyncio.gather(*(runner.close() for _, runner in self._runners))


class _ListenerRunner:
    """One listener, and what went wrong with it."""

    def __init__(self, listener: Listener, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.users = 0
        """How many tell it something."""
        self._function = listener.function
        self._complain = ThrottledWarnings(logger, f"listener {listener.described}").warn

    def call(self, events: Sequence[ListenerEvent]) -> None:
        began, function = monotonic(), self._function
        for event in events:
            try:
                function(event)
            except Exception:
                self._failed_at(type(event))
        self._warn_if_slow(began)

    def call_handled(self, subscription: str, group: str, each: Iterable[tuple[Attempt, float]]) -> None:
        """The same for `Handled`. Each is made when it is told, and gone before the next: that takes the least."""
        began, function = monotonic(), self._function
        for one, took in each:
            try:
                function(Handled(subscription, group, one.message, one.attempt, took))
            except Exception:
                self._failed_at(Handled)
        self._warn_if_slow(began)

    def _failed_at(self, kind: type[ListenerEvent]) -> None:
        self._complain(f"failed at {kind.__name__}", with_traceback=True)

    def _warn_if_slow(self, began: float) -> None:
        seconds = monotonic() - began
        if seconds > SLOW_LISTENER_SECONDS:
            self._complain(f"took {seconds:.1f} s, in which nothing else ran: make it async")

    async def close(self) -> None:
        """One tells it no more; a plain listener has nothing left to do."""
        self.users -= 1


class _AsyncListenerRunner(_ListenerRunner):
    """One async listener, and what waits for it."""

    def __init__(self, listener: Listener, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(listener, loop)
        self._waiting: deque[ListenerEvent] = deque()
        self._bytes = 0
        self._task: asyncio.Task[None] | None = None

    def call(self, events: Sequence[ListenerEvent]) -> None:
        for event in events:
            self._keep(event)

    def call_handled(self, subscription: str, group: str, each: Iterable[tuple[Attempt, float]]) -> None:
        for one, took in each:
            self._keep(Handled(subscription, group, one.message, one.attempt, took))

    def _keep(self, event: ListenerEvent) -> None:
        self._bytes += _event_size(event)
        if self._waiting and (len(self._waiting) >= MAX_WAITING_EVENTS or self._bytes > MAX_WAITING_BYTES):
            self._bytes -= _event_size(event)
            self._complain(f"is too slow: {len(self._waiting):,} events wait for it, and it misses others")
            return
        self._waiting.append(event)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="milepost-listener")

    async def _work(self) -> None:
        while self._waiting:
            event = self._waiting.popleft()
            self._bytes -= _event_size(event)
            try:
                await call_in_copied_context(self._call, event)
            except Exception:
                self._failed_at(type(event))

    async def _call(self, event: ListenerEvent) -> None:
        await self._function(event)

    async def close(self) -> None:
        await super().close()
        if self._task is None or self._task.done():
            return
        await asyncio.wait([self._task], timeout=LISTENER_GRACE_SECONDS)
        # Others may tell it something yet: then it goes on.
        if not self.users and not self._task.done():
            self._complain(
                f"did not end within {LISTENER_GRACE_SECONDS:g} s: "
                f"{len(self._waiting) + 1:,} events are lost to it"
            )
            await cancel_and_wait(self._task)


def _event_size(event: ListenerEvent) -> int:
    if isinstance(event, HandledSeveral):
        return DURATION_BYTES * len(event.seconds)
    return event.message.size if isinstance(event, MessageEvent) else 0


def _event_classes(described: UserFunction) -> tuple[type[ListenerEvent], ...]:
    """The events that a function's parameter names."""
    parameters = described.parameters()
    if not parameters or parameters[0].keyword_only or any(other.required for other in parameters[1:]):
        raise TypeError(f"{described}: a listener takes one parameter, the event")
    first = parameters[0]
    if first.hint is EMPTY or first.hint is Any:
        return (Event,)
    named = get_args(first.hint) if get_origin(first.hint) in (Union, UnionType) else (first.hint,)
    for one in named:
        if not (isinstance(one, type) and issubclass(one, ListenerEvent)):
            raise described.wrong(first, f"an event of milepost.events is wanted, or several of them, not {one!r}")
    return named
