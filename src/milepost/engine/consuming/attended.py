"""A subscription with consumers in this process: lives among other processes for as long as there are some."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from milepost.dispatch import Cursor, LaneState, Loaded, Row
from milepost.engine.clock import Clock
from milepost.engine.consuming.company import Companies, Company
from milepost.engine.consuming.created import batched, stored_in
from milepost.engine.consuming.desk import Desk
from milepost.engine.consuming.endings import DELETED, LOST
from milepost.engine.consuming.looking import OwnerStatistics
from milepost.engine.consuming.options import Created
from milepost.engine.declaring import RowPlaces
from milepost.engine.journal import Journal
from milepost.engine.listeners import Audience
from milepost.engine.owned import Owned
from milepost.engine.place import Place
from milepost.engine.rows import Rows
from milepost.engine.telling import Telling
from milepost.errors import Unavailable
from milepost.log.database import end
from milepost.log.message import Message
from milepost.progress.created import Attendance
from milepost.progress.protocol import Held, Opened, Stale

TELL = 2.0
"""Seconds between two reports of what consumers do."""
AT_LEAST = 5.0
"""Seconds after which it is told that nothing has changed."""


class Attended:
    """Keeps the subscription's lane while there are consumers, and follows what people want."""

    keeps = True

    def __init__(
        self,
        group: str,
        name: str,
        opened: Opened,
        place: Place,
        *,
        clock: Clock,
        companies: Companies,
        audience: Audience | None,
    ) -> None:
        self.opened = opened
        self.name = name
        self.journal = Journal(name, group)
        self._place = place
        self._stored = stored_in(place)
        self._clock = clock
        self._companies = companies
        self._audience = audience
        self._company = self._join()
        """Those with the same lease."""
        self._news = asyncio.Event()
        """Something is to be told at once."""
        self.runner = Desk(
            Created.from_stored(name, opened.settings),
            opened,
            place=place,
            clock=self._clock,
            journal=self.journal,
            telling=None if audience is None else Telling(audience, name, group),
            lost=self._lost,
            is_elsewhere=lambda: opened.id in self._company.sharing.elsewhere,
            news=self._news.set,
            reports_soon=lambda: self._company.sharing.look_soon(),
        )
        self._follows = opened.acted
        """The change of the subscription that is in force here, by the number of them."""
        self._is_leased = True
        """Whether its lease is in force here."""
        self._ready = asyncio.Event()
        self._stopping = False
        self._over = asyncio.Event()
        """It lives no longer, or anew among others."""
        self._task: asyncio.Task[None] | None = None

    def _join(self) -> Company:
        return self._companies.of(self._place, self._lease)

    @property
    def _lease(self) -> float:
        """Seconds after which another process takes over, if this one gives no sign of life."""
        return float(self.opened.settings["lease"])

    def _lost(self, owned: Owned, error: Exception) -> None:
        self._company.sharing.lose(self.opened.id, owned, error)

    # Living

    async def start(self) -> None:
        """Begins to live; returns when it was first looked whether the lane can be had."""
        self._task = asyncio.create_task(self._live(), name=f"milepost-consumers-{self.name}")
        self._task.add_done_callback(_known)
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait([self._task, ready], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(ready)
        if self._task.done():
            self._task.result()
        self.runner.say_standby()

    @property
    def is_over(self) -> bool:
        """Whether it lives no longer."""
        return self._stopping or (self._task is not None and self._task.done())

    async def stop(self) -> None:
        """Gives the lane back, and lives no longer."""
        self._end()
        if self._task is not None:
            with suppress(Exception):
                await asyncio.shield(self._task)

    def _end(self) -> None:
        self._stopping = True
        self._over.set()

    async def _live(self) -> None:
        try:
            await self._place.services.begin()
            self._clock.set(await self._place.services.progress.now())
            while not self._stopping:
                self._over.clear()
                self._company = self._join()
                async with self._company.joined(self, self._lease):
                    await self._live_in(self._company)
        except Exception as error:
            only = _only(error)
            self.journal.broke("its consumers end", only)
            raise only from only.__cause__
        finally:
            self.runner.end(LOST)
            if self._audience is not None:
                await self._audience.close()

    async def _live_in(self, company: Company) -> None:
        sharing, telling = company.sharing, self.runner.telling
        if telling is not None:
            telling.started(sharing.id)
        sharing.served[self.opened.id] = self
        try:
            async with asyncio.TaskGroup() as group:
                await self._serve(group, company)
        except Exception as error:
            sharing.drop(self.opened.id, _only(error))
            raise
        finally:
            with suppress(Unavailable):
                await self._stored.attend_no_more(self.opened.id, sharing.id)
            if telling is not None:
                telling.stopped(sharing.id)

    async def _serve(self, group: asyncio.TaskGroup, company: Company) -> None:
        desk = self.runner
        works = (desk.handing.run(), desk.reading.run(), desk.writing.run(), self._tell())
        tasks = [group.create_task(work) for work in works]
        await company.unless_it_ends(company.sharing.balanced())
        self._ready.set()
        await company.unless_it_ends(self._over.wait())
        await company.sharing.part(self.opened.id)
        for task in tasks:
            await end(task)

    # Telling

    async def _tell(self) -> None:
        """Tells what is done here, so that it can be seen from anywhere."""
        told: Attendance | None = None
        told_at = 0.0
        while True:
            self._news.clear()
            attendance, now = self._attendance(), asyncio.get_running_loop().time()
            if attendance != told or now - told_at >= AT_LEAST:
                with suppress(Unavailable):
                    await self._stored.attend(self.opened.id, self._company.sharing.id, attendance)
                    told, told_at = attendance, now
            with suppress(TimeoutError):
                async with asyncio.timeout(TELL):
                    await self._news.wait()

    def _attendance(self) -> Attendance:
        desk = self.runner
        return Attendance(
            acted=self._follows,
            owns=bool(desk.lanes),
            consumers=len(desk.consumers),
            statistics=self._statistics() if desk.lanes else None,
            node=self._place.node,
        )

    def _statistics(self) -> OwnerStatistics:
        desk = self.runner
        return OwnerStatistics(
            desk.settler.numbers.figures(desk.in_flight),
            tuple(consumer.told(desk.in_flight_of(consumer)) for consumer in desk.consumers.values()),
        )

    # Following what is stored

    @property
    def keep_done(self) -> float | None:
        """For how many seconds rows are kept of what is done; None: not at all."""
        return self.runner.created.declaration.keep_done

    @property
    def wanted(self) -> int | None:
        """The lane, while there are consumers and nothing keeps it from running."""
        if self._over.is_set() or not self.runner.consumers:
            return None
        return 0 if self.opened.rests else 1

    @property
    def _is_reordered(self) -> bool:
        """Whether the order that is stored is in force here."""
        stored = Created.from_stored(self.name, self.opened.settings).declaration
        is_rekeyed = not (self.opened.rekeys and self.runner.lanes)
        return is_rekeyed and stored.orders == self.runner.created.declaration.orders

    async def learn(self, opened: Opened) -> None:
        """It is stored like this now."""
        before, self.opened = self.opened, msgspec.structs.replace(opened, number=opened.newest)
        if opened.status != before.status:
            self.journal.status(opened.status)
            if self.runner.telling is not None:
                self.runner.telling.status(opened.status)
        if (opened.settings, opened.since) != (before.settings, before.since) or not self._is_reordered:
            await self._adapt()
        await self._change_lease()
        if opened.acted != before.acted:
            self.runner.poke()
        self._follow()
        self.runner.say_standby()

    async def _adapt(self) -> None:
        created, owned = Created.from_stored(self.name, self.opened.settings), self.runner.owned
        # The order comes last: by then nothing may be under way.
        first = created if owned is None else created.ordered_as(self.runner.created)
        passed = self.runner.change(first, self.opened)
        if passed is not None and owned is not None:
            await self._adopt(owned, passed)
        if owned is not None and not self._is_reordered:
            await self._reorder(owned, created)

    async def _adopt(self, owned: Owned, passed: Cursor) -> None:
        """Another filter, from here on. Nothing is written meanwhile: that would be taken for the old one's."""
        with owned.unwritten():
            try:
                await self._stored.adopt(self.opened.id, self.opened.newest, passed)
            except Unavailable as error:
                self._lost(owned, error)

    async def _reorder(self, owned: Owned, created: Created) -> None:
        """Another order, from here on: rows get their keys by it, then what is in memory."""
        with owned.unwritten():
            while owned.exchanging:
                await owned.changes()
            if owned.leaves or owned.lost:
                # Whoever takes it next does it.
                return
            try:
                rows = await self._rekey(owned.held, created, owned.lane.stored_rows)
            except (Stale, Unavailable) as error:
                self._lost(owned, error)
                return
            if not owned.lost:
                self.runner.reorder(created, rows)

    async def _rekey(self, held: Held, created: Created, known: Mapping[int, int | None]) -> dict[int, Row]:
        """Gives rows their keys; what is stored now of those that are known."""
        opened = self.opened
        places = RowPlaces(created.declaration.ordered_by, 1, Rows(self._place.log.database, self._place.reader))
        positions = await self._stored.row_positions(opened.id)
        placed = [each for page in batched(positions) for each in await places(page)]
        rows = await self._stored.rekey(held, opened.newest, placed, known)
        if self.opened is opened:
            self.opened = msgspec.structs.replace(opened, rekeys=False)
        return rows

    async def prepare(self, held: Held, state: LaneState[Message[Any]]) -> LaneState[Message[Any]]:
        """A lane was taken: its rows may still have their keys by an order before."""
        if not self.opened.rekeys:
            return state
        running = {loaded.row.position: loaded.row for loaded in state.running}
        known = {position: row.revision for position, row in running.items()}
        try:
            rows = running | await self._rekey(held, self.runner.created, known)
        except Stale as error:
            raise Unavailable("another process has taken the lane") from error
        return msgspec.structs.replace(
            state, running=[Loaded(rows[each.row.position], each.message) for each in state.running]
        )

    async def _change_lease(self) -> None:
        """Another lease is in force at once. Whoever wants a longer one than those it is among leaves them, when
        nothing of it is out."""
        self._is_leased = False
        with suppress(Unavailable):
            await self._company.change_lease(self, self._lease)
            self._is_leased = True
        if self._company.lease < self._lease and not self.runner.in_flight:
            self._over.set()

    def _follow(self) -> None:
        """Tells that a change is in force here."""
        if self._is_reordered and self._is_leased and self.opened.acted != self._follows:
            self._follows = self.opened.acted
            self._news.set()

    async def taken_back(self) -> None:
        """Whoever created it is not here."""
        return

    async def deleted(self) -> None:
        """It is there no more."""
        self.journal.warning("it was deleted: its consumers end")
        self.runner.end(DELETED)
        self._end()


def _known(task: asyncio.Task[None]) -> None:
    """What ended it was logged, and its consumers were told: nobody has to ask again."""
    if not task.cancelled():
        task.exception()


def _only(error: Exception) -> Exception:
    """The error of a group that has one, or the group."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
