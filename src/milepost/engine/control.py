"""What people do to a subscription, from any process: its workers follow at once, and what is done holds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from math import inf
from typing import Any
from uuid import UUID, uuid4

import msgspec

from milepost.engine.moving import Placing, moved, replayed
from milepost.engine.past import past_of
from milepost.engine.place import Place
from milepost.engine.start import Start, refuse_beyond_end, start_from, start_of
from milepost.engine.values import MOST, checked, whole
from milepost.errors import Busy, DeclaredInCode, MilepostError, NotConfirmed
from milepost.log.since import Since
from milepost.log.uncancelled import uncancelled
from milepost.progress.control import PostgresControl
from milepost.progress.standing import Standing
from milepost.progress.tracing import Tracing
from milepost.suggestions import closest

PAUSES = (0.01, 0.2)
"""Shortest and longest pause between two looks at whether workers have confirmed, in seconds."""
STANDSTILL_SECONDS = 0.5
"""How long nothing goes out at first, while what runs may end. What takes longer is waited for while all go on."""
LONG_STANDSTILL_SECONDS = 5.0
"""As long as this the next standstill may be, if what runs took that long."""
RENEW = 3.0
"""Seconds after which a barrier is set again."""

PAUSED = "paused: that is for a new one; this one is there: pause it or resume it"
"""What is said to whoever would change that by an update."""

LIMITS = ("concurrency",)
"""What operators may set of a subscription that is declared in code."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a move or a replay would do. Positions of the log are counted: its filter may not want all of them."""

    position: int
    """Where it would go on."""
    again: int
    """Messages of the log, at most, that it has passed and that would come again."""
    passed_over: int
    """Messages of the log, at most, that would never be handled."""
    rows: dict[str, int]
    """How many deliveries of each state would be forgotten, since their messages come again, or never."""


class Control:
    """The actions on one subscription whose progress is in PostgreSQL."""

    def __init__(self, place: Place, standing: Standing) -> None:
        database = place.services.database
        if database is None:
            raise MilepostError("progress is kept outside of PostgreSQL: it can only be operated where it is kept")
        self._log = place.log
        self._services = place.services
        self._progress = place.services.progress
        self._life: UUID | None = None
        """In which it was begun to look at the subscription."""
        self._control = PostgresControl(database, place.log.statements.schema)
        self._tracing = Tracing(database, place.log.statements.schema)
        self._standing = standing
        self._address = f"{standing.group}/{standing.name}"

    # Pausing

    async def pause(self, timeout: float, *, force: bool) -> None:
        """Nothing of it runs any more when this returns; raises `NotConfirmed` if somebody takes longer."""
        await self._control.set_status(self._standing.id, "paused")
        if force:
            await self._forced(timeout)
        else:
            await self._drained(timeout)

    async def resume(self) -> None:
        """It goes on."""
        await self._control.set_status(self._standing.id, "running")

    # Moving

    async def plan_move(self, to: Start) -> Plan:
        """What a move would do."""
        target, _ = await start_of(await self._place("to", to), self._log)
        return await self._plan(moved(self._standing.lanes, {}, target), target.position)

    async def move(self, to: Start, timeout: float, *, force: bool) -> int:
        """Goes on elsewhere; how many deliveries were forgotten."""
        to = await self._place("to", to)
        async with self.behind_barrier("it is being moved", timeout, force=force) as (standing, barrier):
            # The log may have gone back meanwhile.
            target, since = await start_of(await self._place("to", to), self._log)
            await self._services.cover(target.end, self._log.horizon.life)
            memories = await self._control.memories(standing.id)
            return await self._put(standing, barrier, moved(standing.lanes, memories, target), since)

    async def plan_replay(self, start: Start, end: datetime | int | None) -> Plan:
        """What a replay would do."""
        first, last = await self._bounds(start, end)
        placing = await self._replayed(self._standing, first, last)
        return await self._plan(placing, min(lane.position for lane in placing.lanes))

    async def replay(self, start: Start, end: datetime | int | None, timeout: float, *, force: bool) -> int:
        """What was handled between these comes again; how many positions that are."""
        self._life = await self._progress.life()
        first, last = await self._bounds(start, end)
        async with self.behind_barrier("it is to be replayed", timeout, force=force) as (standing, barrier):
            placing = await self._replayed(standing, first, last)
            await self._put(standing, barrier, placing, await self._control.since(standing.id))
            return placing.again.size

    async def _place(self, name: str, given: Start) -> Start:
        """Somewhere in the log: who moves beyond its end would miss what is still to come."""
        place = checked(name, start_from, given)
        await refuse_beyond_end(name, place, self._log)
        return place

    async def _bounds(self, start: Start, end: datetime | int | None) -> tuple[int, int | None]:
        first = (await start_of(await self._place("start", start), self._log))[0].position
        last = None
        if end is not None:
            last = (await start_of(checked("end", start_from, end), self._log))[0].position
        if last is not None and last <= first:
            raise ValueError(f"{self._address}: a replay from {first} to {last} has nothing in it")
        return first, last

    async def _replayed(self, standing: Standing, start: int, end: int | None) -> Placing:
        found = await self._control.rows_between(standing.id, start, end)
        # One that is kept though it is done had been handled.
        rows = [position for position, _, state in found if state != "done"]
        [stored] = await self._tracing.subscriptions(standing.group, standing.name)
        memories = await self._control.memories(standing.id)
        return replayed(standing.lanes, rows, past_of(stored), memories, start, end)

    async def _put(self, standing: Standing, barrier: str, placing: Placing, since: Since | None) -> int:
        removed = await self._control.place(
            standing.id,
            barrier,
            [lane.cursor for lane in standing.lanes],
            placing.lanes,
            placing.memories,
            life=self._life,
            above=placing.above,
            up_to=placing.up_to,
            followers=placing.followers,
            since=since,
        )
        if removed is None:
            raise Busy(f"{self._address}: it went on meanwhile: try again")
        return removed

    async def _plan(self, placing: Placing, position: int) -> Plan:
        rows: dict[str, int] = {}
        for _, _, state in await self._control.rows_between(self._standing.id, placing.above, placing.up_to):
            rows[state] = rows.get(state, 0) + 1
        reached = max(lane.cursor.position for lane in self._standing.lanes)
        lowest = min((low for lane in placing.lanes for low, _ in lane.leaps), default=position + 1)
        return Plan(
            position=position,
            again=await self._count(position, min(reached, placing.up_to or reached)),
            passed_over=await self._count(lowest - 1, position),
            rows=rows,
        )

    async def _count(self, above: int, up_to: int) -> int:
        if up_to <= above:
            return 0
        parameters = {"above": above, "up_to": up_to}
        rows = await self._log.database.within(None).execute(self._log.statements.get("count_between"), parameters)
        return int(rows[0][0])

    # Changing and deleting

    async def update(self, changes: dict[str, Any]) -> None:
        """Sets limits beside what the code says; None takes one back. Anything else is for the code."""
        if not changes:
            raise ValueError(f"nothing to update: {' or '.join(LIMITS)} can be")
        for name in changes:
            if name == "paused":
                raise ValueError(PAUSED)
            if name not in LIMITS:
                meant = closest(name, LIMITS)
                raise DeclaredInCode(
                    f"{self._address}: {name} is declared by its program: change it there, and what runs follows; "
                    f"from here {', '.join(LIMITS)} can be limited{f': did you mean {meant!r}?' if meant else ''}"
                )
        limits = {
            name: None if value is None else checked(name, whole(1, MOST), value)
            for name, value in changes.items()
        }
        await self._control.set_limits(self._standing.id, limits)

    async def delete(self, timeout: float, *, force: bool) -> None:
        """Forgets it and all that is stored of it."""
        async with self.behind_barrier("it is being deleted", timeout, force=force) as (standing, barrier):
            if not await self._control.delete(standing.id, barrier):
                raise Busy(f"{self._address}: workers took it back meanwhile: try again")

    # Barriers

    @asynccontextmanager
    async def behind_barrier(
        self, what: str, timeout: float, *, force: bool = False
    ) -> AsyncIterator[tuple[Standing, str]]:
        """Within this block nothing of it runs, and nobody has its lanes; with `force` nothing is waited for."""
        if self._life is None:
            self._life = await self._progress.life()
        barrier = f"{what} ({uuid4().hex[:8]})"
        try:
            # It may stand though this raises: its answer was lost, or not waited for.
            await self._set_barrier(barrier)
            stands = await (self._forced(timeout, barrier) if force else self._at_rest(timeout, barrier))
            yield stands, barrier
        finally:
            await uncancelled(self._control.lift_barrier(self._standing.id, barrier))

    async def _at_rest(self, timeout: float, barrier: str) -> Standing:
        """Wait until nobody has a lane; return how it stands then.

        All stand still only for moments: while something takes long the others go on, and when it has ended they
        stand still again. Each time they may do so for longer, or where all take long it would never come to rest.
        """
        clock = asyncio.get_running_loop().time
        end, seconds = clock() + timeout, STANDSTILL_SECONDS
        while True:
            begun = clock()
            try:
                return await self._drained(min(seconds, end - begun), barrier)
            except NotConfirmed:
                if clock() >= end or not await self._go_on_beside(barrier, end):
                    raise
            seconds = max(2 * seconds, min(clock() - begun, LONG_STANDSTILL_SECONDS))
            await self._set_barrier(barrier)

    async def _forced(self, timeout: float, barrier: str | None = None) -> Standing:
        """Take back what does not end at once, wait until nobody has a lane, and return how it stands then."""
        clock = asyncio.get_running_loop().time
        end = clock() + timeout
        settings = self._standing.settings
        if settings is not None and settings["tracking"] == "all":
            # Nobody has its lane, and nobody is asked.
            await self._control.take_back(self._standing.id)
        try:
            return await self._drained(min(STANDSTILL_SECONDS, timeout), barrier)
        except NotConfirmed:
            await self._control.take_back(self._standing.id)
        return await self._drained(max(0, end - clock()), barrier)

    async def _go_on_beside(self, barrier: str, end: float) -> bool:
        """Let all go on until what ran by now has ended; False if it has not by then."""
        clock = asyncio.get_running_loop().time
        renewed = -inf
        pause, longest = PAUSES
        while clock() < end:
            if clock() > renewed + RENEW:
                renewed = clock()
                await self._control.yield_barrier(self._standing.id, barrier)
            if not await self._control.waits(self._standing.id):
                return True
            await asyncio.sleep(min(pause, max(0, end - clock())))
            pause = min(pause * 1.5, longest)
        return False

    async def _set_barrier(self, barrier: str) -> None:
        stands = await self._control.set_barrier(self._standing.id, barrier)
        if stands != barrier:
            raise Busy(f"{self._address}: {stands}: wait for that")

    async def _drained(self, timeout: float, barrier: str | None = None) -> Standing:
        """Waits until nobody has a lane; how it stands then."""
        loop = asyncio.get_running_loop()
        end, renewed = loop.time() + timeout, loop.time()
        pause, longest = PAUSES
        while True:
            standing = await self._stands()
            if barrier is None and standing.status != "paused":
                raise Busy(f"{self._address}: it was resumed meanwhile")
            holding = [lane for lane in standing.lanes if lane.held]
            if not holding:
                return standing
            if loop.time() >= end:
                so_far = "it is paused" if barrier is None else "nothing was done"
                raise NotConfirmed(self._address, sorted({lane.owner or "somebody" for lane in holding}), so_far)
            if barrier is not None and loop.time() > renewed + RENEW:
                renewed = loop.time()
                await self._control.set_barrier(standing.id, barrier)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, longest)

    async def _stands(self) -> Standing:
        found = await self._progress.standings(self._standing.group, self._standing.name)
        if not found or found[0].id != self._standing.id:
            raise Busy(f"{self._address}: it was deleted meanwhile")
        return found[0]
