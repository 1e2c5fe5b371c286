"""How many handlers run at once in a process, and which is next."""

import asyncio
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Protocol

from milepost.engine.declare.outcomes import EndsProgram
from milepost.engine.runtime import SuspectIsolation
from milepost.errors import MilepostError

OVERDUE_CHECK_SECONDS = (0.01, 1.0)
"""Shortest and longest time between two looks for calls that take too long, in seconds."""


class Slot:
    """A place where one call at a time runs."""

    __slots__ = ("deadline", "ends", "late_since", "taken_back", "task", "timed_out")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.deadline: float | None = None
        """When the call has taken too long, by the loop's clock, which is `time.monotonic`."""
        self.late_since: float | None = None
        """When it was told that its time is up, and has not ended since."""
        self.timed_out = False
        self.taken_back = False
        self.ends = False
        """Whether the work ends. That a cancellation is counted says nothing: handlers leave some behind."""

    def begin(self, timeout: float) -> None:
        """A call begins."""
        self.deadline = monotonic() + timeout

    def is_ending(self) -> bool:
        """Whether somebody ends this slot; else a cancellation that arrives is the handler's own affair."""
        return self.ends

    def is_overdue(self, now: float, grace: float) -> bool:
        """Whether nobody could tell it that its time is up, or telling it was of no use."""
        deadline, late_since = self.deadline, self.late_since
        if late_since is not None:
            return now > late_since + 2 * grace + OVERDUE_CHECK_SECONDS[1]
        return deadline is not None and now > deadline + grace + OVERDUE_CHECK_SECONDS[1]

    async def end(self) -> None:
        """It has ended."""
        self.deadline = self.late_since = None
        # It took no notice.
        if self.timed_out:
            self.expired()
        if self.taken_back:
            self.is_taken_back()
        if self.task is not None and self.task.cancelling() and not self.is_ending():
            self.forget_cancellations()
            # One that has not arrived would end what this task waits for next.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if self.is_ending():
                    raise

    def forget_cancellations(self) -> None:
        """Forget those that a handler left behind. Before Python 3.13 each `asyncio.TaskGroup` that fails does."""
        while self.task is not None and self.task.cancelling():
            self.task.uncancel()

    def expired(self) -> bool:
        """Whether a cancellation that has just arrived means that time is up; asked once."""
        if not self.timed_out or self.task is None:
            return False
        self.timed_out = False
        if self.taken_back:
            self.taken_back = False
            self.task.uncancel()
        self.task.uncancel()
        # Somebody else may have cancelled it as well, and that is not swallowed.
        return not self.is_ending()

    def take_back(self) -> None:
        """End the call that runs: others get its messages."""
        if self.task is not None and not self.taken_back:
            self.taken_back = True
            self.task.cancel()

    def is_taken_back(self) -> bool:
        """Whether a cancellation that has just arrived means that; asked once."""
        if not self.taken_back or self.task is None:
            return False
        self.taken_back = False
        self.task.uncancel()
        return not self.is_ending()


class Stuck(MilepostError):
    """A handler did not end though its time was up long ago: what it holds is free only when the process ends."""


class HandlerWork(Protocol):
    """One call of a handler, or a few that take no time."""

    @property
    def alone(self) -> bool:
        """Whether nothing else may run in the process beside it."""
        ...

    async def run(self, slot: Slot) -> None: ...


class WorkSource(Protocol):
    """Somebody who has work: a subscription."""

    timeout: float
    suspects: bool
    """Whether it has something that must run alone."""

    def take(self) -> HandlerWork | None: ...


class Slots:
    """So many calls at once, for all subscriptions of a process, which take turns.

    A call that has not ended `grace` seconds after its time was up ends the work: `Stuck`.
    """

    def __init__(self, size: int, grace: float, suspect_isolation: SuspectIsolation) -> None:
        self._suspect_isolation = suspect_isolation
        self._grace = grace
        self._slots = [Slot() for _ in range(size)]
        self._sources: deque[WorkSource] = deque()
        self._asleep: deque[asyncio.Future[None]] = deque()
        self._pause = OVERDUE_CHECK_SECONDS[1]
        self._busy = 0
        self._alone = False
        self.ending: EndsProgram | None = None
        """What a handler raised that ends the program: nothing more is called, and what runs goes on."""
        self.ended = asyncio.Event()
        """Set with it."""

    @property
    def in_flight(self) -> int:
        """How many calls run."""
        return self._busy

    def serve(self, sources: Sequence[WorkSource]) -> None:
        """Works for these from now on."""
        self._sources = deque(sources)
        shortest = min((source.timeout for source in sources), default=OVERDUE_CHECK_SECONDS[1])
        self._pause = min(max(shortest / 10, OVERDUE_CHECK_SECONDS[0]), OVERDUE_CHECK_SECONDS[1])
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
        self._suspect_isolation.join(self)
        try:
            async with asyncio.TaskGroup() as group:
                for number, slot in enumerate(self._slots):
                    slot.task = group.create_task(self._serve(slot), name=f"milepost-slot-{number}")
                # Not in a task: what ends the work has to pass here before the slots are cancelled.
                try:
                    await self._watch()
                finally:
                    self._end()
        finally:
            self._suspect_isolation.leave(self)

    def _end(self) -> None:
        for slot in self._slots:
            slot.ends = True

    async def _serve(self, slot: Slot) -> None:
        while True:
            try:
                await self._work(slot)
            except asyncio.CancelledError:
                if slot.is_ending():
                    raise
                # A handler left it behind: it ended one wait, and not the work.
            except BaseException:
                self._end()
                raise

    async def _work(self, slot: Slot) -> None:
        while True:
            work = self._next()
            if work is None:
                await self._sleep()
                continue
            if self._asleep:
                self.wake()
            self._busy += 1
            self._alone = work.alone
            try:
                await work.run(slot)
            except EndsProgram as error:
                self.ending = self.ending or error
                self.ended.set()
            finally:
                self._busy -= 1
                self._alone = False
                self._suspect_isolation.settled()
                await slot.end()
            if slot.is_ending():
                # The handler took no notice.
                raise asyncio.CancelledError
            # It may not have waited for anything, and others want to go on.
            await asyncio.sleep(0)

    def _next(self) -> HandlerWork | None:
        sources = self._sources
        if self._alone or self.ending is not None:
            return None
        suspecting = next((source for source in sources if source.suspects), None)
        self._suspect_isolation.wants(self, suspecting is not None)
        if not self._suspect_isolation.permits(self):
            return None
        if suspecting is not None:
            return None if self._busy else suspecting.take()
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
        while True:
            await asyncio.sleep(self._pause)
            now = monotonic()
            for slot in self._slots:
                if slot.late_since is not None and now > slot.late_since + self._grace:
                    raise Stuck(f"a handler has not ended {self._grace:g} s after its time-out")
                deadline = slot.deadline
                if deadline is not None and now >= deadline and slot.task is not None:
                    slot.deadline, slot.late_since = None, now
                    slot.timed_out = True
                    slot.task.cancel()

    def is_blocked(self) -> bool:
        """Whether the loop does not go on, or a call does not let the work end. For another thread to ask.

        A call should have been told long ago that its time is up, or was told and takes no notice even of the end.
        """
        now = monotonic()
        return any(slot.is_overdue(now, self._grace) for slot in self._slots)
