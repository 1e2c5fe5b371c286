"""Functions that are told of events."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from contextvars import copy_context
from time import monotonic
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from milepost.complaints import Complaints
from milepost.engine.context_variables import call_apart
from milepost.engine.described import EMPTY, Described, Function
from milepost.engine.events import Attempt, Event, Handled, HandledSeveral, MessageEvent, Told
from milepost.log.database import end

logger = logging.getLogger("milepost.events")

F = TypeVar("F", bound=Function)

MOST_WAITING = 10_000
"""How many events may wait for an async listener; further ones it does not get."""
MOST_BYTES = 8 * 2**20
"""How many bytes of messages may wait with them."""
BYTES_A_TIME = 32
"""What one of the times of `HandledSeveral` takes."""
SLOW = 0.1
"""Seconds after which a plain listener is complained of: nothing else runs on the loop meanwhile."""
FAREWELL = 5.0
"""Seconds that async listeners have for what still waits when a program stops."""


class Listener:
    """A function of one parameter, whose annotation says of which events it is told."""

    def __init__(self, given: Any) -> None:
        self.described = Described(given)
        self.classes = _classes(self.described)
        self.function = self.described.function
        self._ear: _Ear | None = None

    def ear(self) -> "_Ear":
        """Where it hears, until whoever asked closes it: one for all that work at a time, as it has one turn."""
        loop = asyncio.get_running_loop()
        if self._ear is None or not self._ear.users or self._ear.loop is not loop:
            self._ear = (_AsyncEar if self.described.is_async else _Ear)(self, loop)
        self._ear.users += 1
        return self._ear


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

    def audience(self) -> "Audience | None":
        """Those who listen from now on; None if nobody does."""
        return Audience(self._listeners) if self._listeners else None


class Audience:
    """Listeners while a worker runs, or consumers of a subscription are here.

    A plain one is called at once, on the event loop. An async one gets its events one after the other, whoever
    tells them, in a task of its own: it delays nobody, and when it cannot follow it misses some.
    """

    def __init__(self, listeners: list[Listener]) -> None:
        self._listeners = listeners
        self._ears = [(listener.classes, listener.ear()) for listener in listeners]
        self._by_class: dict[type[Told], list[_Ear]] = {}

    def admit(self) -> None:
        """Those who came to the program since then listen as well."""
        late = self._listeners[len(self._ears) :]
        if late:
            self._ears += [(listener.classes, listener.ear()) for listener in late]
            self._by_class.clear()

    def wants(self, kind: type[Told]) -> bool:
        """Whether anybody listens to such events."""
        return bool(self._those_for(kind))

    def tell(self, *events: Told) -> None:
        """Tells everybody who listens to events of this kind. Nothing that a listener raises comes back."""
        for ear in self._those_for(type(events[0])):
            # What a listener sets is for itself: handlers are called in copies of the context that this is in.
            copy_context().run(ear.hear, events)

    def tell_each(self, subscription: str, group: str, each: Iterable[tuple[Attempt, float]]) -> None:
        """Tells `Handled` of messages, with how long each took."""
        ears = self._those_for(Handled)
        if len(ears) == 1:
            copy_context().run(ears[0].hear_each, subscription, group, each)
        else:
            self.tell(*[Handled(subscription, group, one.message, one.attempt, took) for one, took in each])

    def _those_for(self, kind: type[Told]) -> "list[_Ear]":
        found = self._by_class.get(kind)
        if found is None:
            found = self._by_class[kind] = [ear for classes, ear in self._ears if issubclass(kind, classes)]
        return found

    async def close(self) -> None:
        """Lets async listeners end with what waits for them, for a while."""
        await asyncio.gather(*(ear.close() for _, ear in self._ears))


class _Ear:
    """One listener, and what went wrong with it."""

    def __init__(self, listener: Listener, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.users = 0
        """How many tell it something."""
        self._function = listener.function
        self._complain = Complaints(logger, f"listener {listener.described}").make

    def hear(self, events: Sequence[Told]) -> None:
        began, function = monotonic(), self._function
        for event in events:
            try:
                function(event)
            except Exception:
                self._failed_at(type(event))
        self._has_heard(began)

    def hear_each(self, subscription: str, group: str, each: Iterable[tuple[Attempt, float]]) -> None:
        """The same for `Handled`. Each is made when it is told, and gone before the next: that takes the least."""
        began, function = monotonic(), self._function
        for one, took in each:
            try:
                function(Handled(subscription, group, one.message, one.attempt, took))
            except Exception:
                self._failed_at(Handled)
        self._has_heard(began)

    def _failed_at(self, kind: type[Told]) -> None:
        self._complain(f"failed at {kind.__name__}", with_traceback=True)

    def _has_heard(self, began: float) -> None:
        seconds = monotonic() - began
        if seconds > SLOW:
            self._complain(f"took {seconds:.1f} s, in which nothing else ran: make it async")

    async def close(self) -> None:
        """One tells it no more; a plain listener has nothing left to do."""
        self.users -= 1


class _AsyncEar(_Ear):
    """One async listener, and what waits for it."""

    def __init__(self, listener: Listener, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(listener, loop)
        self._waiting: deque[Told] = deque()
        self._bytes = 0
        self._task: asyncio.Task[None] | None = None

    def hear(self, events: Sequence[Told]) -> None:
        for event in events:
            self._keep(event)

    def hear_each(self, subscription: str, group: str, each: Iterable[tuple[Attempt, float]]) -> None:
        for one, took in each:
            self._keep(Handled(subscription, group, one.message, one.attempt, took))

    def _keep(self, event: Told) -> None:
        self._bytes += _size(event)
        if self._waiting and (len(self._waiting) >= MOST_WAITING or self._bytes > MOST_BYTES):
            self._bytes -= _size(event)
            self._complain(f"is too slow: {len(self._waiting):,} events wait for it, and it misses others")
            return
        self._waiting.append(event)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="milepost-listener")

    async def _work(self) -> None:
        while self._waiting:
            event = self._waiting.popleft()
            self._bytes -= _size(event)
            try:
                await call_apart(self._call, event)
            except Exception:
                self._failed_at(type(event))

    async def _call(self, event: Told) -> None:
        await self._function(event)

    async def close(self) -> None:
        await super().close()
        if self._task is None or self._task.done():
            return
        await asyncio.wait([self._task], timeout=FAREWELL)
        # Others may tell it something yet: then it goes on.
        if not self.users and not self._task.done():
            self._complain(f"did not end within {FAREWELL:g} s: {len(self._waiting) + 1:,} events are lost to it")
            await end(self._task)


def _size(event: Told) -> int:
    if isinstance(event, HandledSeveral):
        return BYTES_A_TIME * len(event.seconds)
    return event.message.size if isinstance(event, MessageEvent) else 0


def _classes(described: Described) -> tuple[type[Told], ...]:
    """The events that a function's parameter names."""
    parameters = described.parameters()
    if not parameters or parameters[0].keyword_only or any(other.required for other in parameters[1:]):
        raise TypeError(f"{described}: a listener takes one parameter, the event")
    first = parameters[0]
    if first.hint is EMPTY or first.hint is Any:
        return (Event,)
    named = get_args(first.hint) if get_origin(first.hint) in (Union, UnionType) else (first.hint,)
    for one in named:
        if not (isinstance(one, type) and issubclass(one, Told)):
            raise described.wrong(first, f"an event of milepost.events is wanted, or several of them, not {one!r}")
    return named
