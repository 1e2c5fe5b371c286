"""The part of this process in sharing lanes, for all subscriptions that have consumers here."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from milepost.engine.clock import Clock
from milepost.engine.place import Place
from milepost.engine.sharing import Sharing
from milepost.log.database import end

if TYPE_CHECKING:
    from milepost.engine.consuming.attended import Attended

GRACE = 5.0
"""Seconds for the last writes."""

R = TypeVar("R")


class Company:
    """Lives among others while subscriptions of one lease have consumers here; one heart beats for all."""

    def __init__(self, place: Place, lease: float, clock: Clock) -> None:
        self.sharing: Sharing[Attended] = Sharing(place, grace=GRACE, changed=_nothing, clock=clock)
        self._lease = lease
        self._members = 0
        self._begun = asyncio.Event()
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether nobody can join any more."""
        return self._over.is_set() or (self._task is not None and self._task.done())

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[None]:
        """One more is in it from the beginning of the block to its end; the last one ends it."""
        self._members += 1
        try:
            await self.unless_it_ends(self._begun.wait())
            yield
        finally:
            self._members -= 1
            if not self._members:
                await self._end()

    async def unless_it_ends(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """What the coroutine gives; raises what ended the company, if that comes first."""
        if self._task is None:
            self._task = asyncio.create_task(self._live(), name="milepost-consumers")
        wanted = asyncio.create_task(coroutine)
        try:
            await asyncio.wait([wanted, self._task], return_when=asyncio.FIRST_COMPLETED)
            if not wanted.done():
                self._task.result()
            return wanted.result()
        finally:
            await end(wanted)

    async def _live(self) -> None:
        async with self.sharing.running(self._lease, is_blocked=_never, exits=False):
            self._begun.set()
            await self._over.wait()
            await self.sharing.leave()

    async def _end(self) -> None:
        self._over.set()
        if self._task is not None:
            await asyncio.wait([self._task])


class Companies:
    """One for each lease."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_lease: dict[float, Company] = {}

    def of(self, place: Place, lease: float) -> Company:
        """The one that can be joined."""
        company = self._by_lease.get(lease)
        if company is None or company.is_over:
            self._by_lease = {known: each for known, each in self._by_lease.items() if not each.is_over}
            self._by_lease[lease] = company = Company(place, lease, self._clock)
        return company


def _nothing() -> None:
    pass


def _never() -> bool:
    return False
