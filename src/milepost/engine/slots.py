"""How many handlers run at once in a process, and which is next."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol

TURN = 64
"""How many calls a slot makes before it lets the loop do something else, if none of them waits."""
WATCH = (0.01, 1.0)
"""Shortest and longest time between two looks for calls that take too long, in seconds."""


class Slot:
    """A place where one call at a time runs."""

    __slots__ = ("deadline", "task", "timed_out")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.deadline: float | None = None
        """When the call has taken too long, by the loop's clock."""
        self.timed_out = False

    def expired(self) -> bool:
        """Whether a cancellation that has just arrived means that time is up; asked once."""
        if not self.timed_out or self.task is None:
            return False
        self.timed_out = False
        self.task.uncancel()
        return True


class Work(Protocol):
    """One call of a handler."""

    @property
    def timeout(self) -> float: ...

    @property
    def alone(self) -> bool:
        """Whether nothing else may run in the process beside it."""
        ...

    async def run(self, slot: Slot) -> None: ...


class Source(Protocol):
    """Somebody who has work: a subscription."""

    timeout: float
    suspects: bool
    """Whether it has something that must run alone."""

    def take(self) -> Work | None: ...


class Slots:
    """So many calls at once, for all subscriptions of a process, which take turns."""

    def __init__(self, size: int) -> None:
        self._slots = [Slot() for _ in range(size)]
        self._sources: deque[Source] = deque()
        self._asleep: deque[asyncio.Future[None]] = deque()
        self._pause = WATCH[1]
        self._busy = 0
        self._alone = False

    def serve(self, sources: Sequence[Source]) -> None:
        """Works for these from now on."""
        self._sources = deque(sources)
        shortest = min((source.timeout for source in sources), default=WATCH[1])
        self._pause = min(max(shortest / 10, WATCH[0]), WATCH[1])
        self.wake()

    def wake(self) -> None:
        """There may be work."""
        while self._asleep:
            sleeper = self._asleep.popleft()
            if not sleeper.done():
                sleeper.set_result(None)
                return

    async def run(self) -> None:
        """Works until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for number, slot in enumerate(self._slots):
                slot.task = group.create_task(self._serve(slot), name=f"milepost-slot-{number}")
            group.create_task(self._watch(), name="milepost-watch")

    async def _serve(self, slot: Slot) -> None:
        turn = 0
        loop = asyncio.get_running_loop()
        while True:
            work = self._next()
            if work is None:
                turn = 0
                await self._sleep()
                continue
            if self._asleep:
                self.wake()
            slot.deadline = loop.time() + work.timeout
            self._busy += 1
            self._alone = work.alone
            try:
                await work.run(slot)
            finally:
                slot.deadline = None
                self._busy -= 1
                self._alone = False
            turn += 1
            if turn >= TURN:
                turn = 0
                await asyncio.sleep(0)

    def _next(self) -> Work | None:
        sources = self._sources
        if self._alone:
            return None
        for source in sources:
            if source.suspects:
                return None if self._busy else source.take()
        for _ in range(len(sources)):
            work = sources[0].take()
            sources.rotate(-1)
            if work is not None:
                return work
        return None

    async def _sleep(self) -> None:
        sleeper = asyncio.get_running_loop().create_future()
        self._asleep.append(sleeper)
        await sleeper

    async def _watch(self) -> None:
        """Ends calls that have taken too long."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._pause)
            for slot in self._slots:
                if slot.deadline is not None and loop.time() >= slot.deadline and slot.task is not None:
                    slot.deadline = None
                    slot.timed_out = True
                    slot.task.cancel()
