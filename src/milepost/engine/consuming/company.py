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
    """Lives among others while subscriptions of one lease have consumers here; one heart beats for all.

    When the lease of one of them changes, the shortest holds for all that are in it.
    """

    def __init__(self, place: Place, lease: float, clock: Clock) -> None:
        self.sharing: Sharing[Attended] = Sharing(place, grace=GRACE, changed=_nothing, clock=clock)
        self.lease = lease
        """Seconds after which others take over from this process, if it gives no sign of life."""
        self._leases: dict[object, float] = {}
        """What each of those that are in it wants."""
        self._begun = asyncio.Event()
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether nobody can join any more."""
        return self._over.is_set() or (self._task is not None and self._task.done())

    @asynccontextmanager
    async def joined(self, member: object, lease: float) -> AsyncIterator[None]:
        """One more is in it from the beginning of the block to its end; the last one ends it."""
        self._leases[member] = lease
        try:
            await self.unless_it_ends(self._begun.wait())
            yield
        finally:
            del self._leases[member]
            if not self._leases:
                await self._end()

    async def change_lease(self, member: object, lease: float) -> None:
        """One that is in it wants another lease."""
        self._leases[member] = lease
        shortest = min(self._leases.values())
        if shortest != self.lease:
            await self.sharing.change_lease(shortest)
            self.lease = shortest

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
        async with self.sharing.running(self.lease, is_blocked=_never, exits=False):
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
        self._companies: list[Company] = []

    def of(self, place: Place, lease: float) -> Company:
        """The one that can be joined."""
        self._companies = [each for each in self._companies if not each.is_over]
        for company in self._companies:
            if company.lease == lease:
                return company
        self._companies.append(Company(place, lease, self._clock))
        return self._companies[-1]


def _nothing() -> None:
    pass


def _never() -> bool:
    return False
