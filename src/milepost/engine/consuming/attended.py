"""A subscription with consumers in this process: lives among other processes for as long as there are some."""

import asyncio
from contextlib import suppress

import msgspec

from milepost.engine.consuming.desk import Desk
from milepost.engine.consuming.options import Created
from milepost.engine.journal import Journal
from milepost.engine.owned import Owned
from milepost.engine.place import Place
from milepost.engine.sharing import Sharing
from milepost.log.database import end
from milepost.progress.protocol import Opened

GRACE = 5.0
"""Seconds for the last writes."""


class Attended:
    """Keeps the subscription's lane while there are consumers, and follows what people want."""

    keeps = True

    def __init__(self, group: str, name: str, opened: Opened, place: Place) -> None:
        self.opened = opened
        self.name = name
        self._place = place
        self._sharing: Sharing[Attended] = Sharing(place, grace=GRACE, changed=lambda: None)
        self.journal = Journal(name, group)
        self.runner = self._desk(Created.from_stored(name, opened.settings))
        self._ready = asyncio.Event()
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def _desk(self, created: Created) -> Desk:
        return Desk(
            created,
            self.opened,
            place=self._place,
            clock=self._sharing.clock,
            journal=self.journal,
            lost=self._lost,
        )

    def _lost(self, owned: Owned, error: Exception) -> None:
        self._sharing.lose(self.opened.id, owned, error)

    # Living

    async def start(self) -> None:
        """Begins to live; returns when it was first looked whether the lane can be had."""
        self._task = asyncio.create_task(self._live(), name=f"milepost-consumers-{self.name}")
        ready = asyncio.create_task(self._ready.wait())
        await asyncio.wait([self._task, ready], return_when=asyncio.FIRST_COMPLETED)
        await end(ready)
        if self._task.done():
            self._task.result()

    @property
    def is_over(self) -> bool:
        """Whether it lives no longer."""
        return self._stop.is_set() or (self._task is not None and self._task.done())

    async def stop(self) -> None:
        """Gives the lane back, and lives no longer."""
        self._stop.set()
        if self._task is not None:
            with suppress(Exception):
                await self._task

    async def _live(self) -> None:
        try:
            await self._place.services.begin()
            self._sharing.clock.set(await self._place.services.progress.now())
            lease = self.runner.created.declaration.lease
            async with self._sharing.running(lease, is_blocked=_never, exits=False) as group:
                self._sharing.served[self.opened.id] = self
                self._run(group)
                self._sharing.look_soon()
                await self._sharing.shared.wait()
                self._ready.set()
                await self._stop.wait()
                await self._sharing.leave()
                for task in self._tasks:
                    await end(task)
        except Exception as error:
            self.journal.error("consumers end: %s", error)
            raise
        finally:
            self.runner.end("lost")

    def _run(self, group: asyncio.TaskGroup) -> None:
        desk = self.runner
        self._tasks = [group.create_task(work) for work in (desk.run(), desk.reading.run(), desk.writing.run())]

    def look_soon(self) -> None:
        """Whether the lane is wanted may have changed."""
        self._sharing.look_soon()

    # Following what is stored

    @property
    def wanted(self) -> int | None:
        """The lane, while there are consumers and nothing keeps it from running."""
        if self._stop.is_set() or not self.runner.consumers:
            return None
        return 0 if self.opened.rests or self._is_misfit else 1

    @property
    def _is_misfit(self) -> bool:
        """Whether the lane has to be made anew, for another order or another strategy."""
        stored = Created.from_stored(self.name, self.opened.settings)
        mine = self.runner.created
        return (stored.strategy, stored.declaration.orders) != (mine.strategy, mine.declaration.orders)

    async def learn(self, opened: Opened) -> None:
        """It is stored like this now."""
        before, self.opened = self.opened, msgspec.structs.replace(opened, number=opened.newest)
        if opened.status != before.status:
            self.journal.info("it is %s", opened.status)
        if (opened.settings, opened.since) != (before.settings, before.since) or self._is_misfit:
            self._adapt()
        if opened.acted != before.acted:
            self.runner.poke()

    def _adapt(self) -> None:
        if self._is_misfit and self.runner.lanes:
            # First it has to come back.
            return
        self.runner.change(Created.from_stored(self.name, self.opened.settings), self.opened)

    async def deleted(self) -> None:
        """It is there no more."""
        self.journal.warning("it was deleted: its consumers end")
        self.runner.end("deleted")
        self._stop.set()


def _never() -> bool:
    return False
