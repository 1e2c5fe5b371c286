"""Pause, resume, move, replay, limit and delete a subscription, from any process: its workers follow at once."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import reduce
from math import inf
from typing import Any
from uuid import UUID, uuid4

import msgspec

from milepost.concurrency import run_to_end
from milepost.dispatch import Cursor
from milepost.engine.checks import MAX_COUNTABLE_NUMBER, checked, whole
from milepost.engine.declare.consumer_options import PAUSED_IS_FOR_NEW
from milepost.engine.declare.declaration import Start, checked_start, cursor_of_start, refuse_beyond_end
from milepost.engine.operate.trace.history import order_eras
from milepost.engine.runtime import Runtime
from milepost.errors import Busy, DeclaredInCode, MilepostError, NotConfirmed
from milepost.log.query import Since
from milepost.names import closest_name
from milepost.progress.postgres.operate import PlacedLane
from milepost.progress.postgres.trace import StoredDefinition, StoredSubscription
from milepost.progress.protocol import BARRIER_RENEW_SECONDS, HandledBefore
from milepost.progress.reports import LaneStatus, SubscriptionState
from milepost.ranges import NO_POSITIONS, Ranges


class HandledHistory(msgspec.Struct, frozen=True, kw_only=True):
    """What became of all that a subscription has passed."""

    begun: Ranges
    """What had been passed when it began, and has not come since."""
    handled: HandledBefore
    """What lanes have passed, and nobody moved them past: of that, what the definition selected."""
    alike: frozenset[int]
    """The definitions that order as the newest does: their lanes are those of now."""

    def of_lane(self, lane: int) -> Ranges:
        """Where a message that is in this lane now can have been handled."""
        found = Ranges()
        for (number, its_lane), ranges in self.handled.items():
            if its_lane == lane or number not in self.alike:
                found = found.joined(ranges)
        return found


def handled_history(stored: StoredSubscription) -> HandledHistory:
    """What is stored, reckoned backwards: what a definition began with was passed by those before."""
    handled: dict[tuple[int, int], Ranges] = {}
    passed = [passed_ranges(cursor) for cursor in stored.cursors]
    for era in order_eras(stored.definitions):
        if len(passed) != era.oldest.lanes:
            passed = passed[:1] * era.oldest.lanes
        for definition in era.definitions:
            begun = [passed_ranges(definition.begins(lane)) for lane in range(definition.lanes)]
            for lane, ranges in enumerate(passed):
                leaps = _leapt_ranges(stored, definition, lane)
                handled[definition.number, lane] = ranges.minus(begun[lane]).minus(leaps)
            passed = [ranges.both(begun[lane]) for lane, ranges in enumerate(passed)]
        # An order begins with all lanes in one place.
        passed = [reduce(Ranges.both, passed)] * len(passed)
    return HandledHistory(
        begun=passed[0], handled=handled, alike=frozenset(_same_order_definitions(stored.definitions))
    )


def passed_ranges(cursor: Cursor) -> Ranges:
    """What is behind a cursor, or done ahead of it."""
    behind = Ranges([(1, cursor.position)] if cursor.position > 0 else [])
    return behind.joined(Ranges(cursor.ahead))


def _leapt_ranges(stored: StoredSubscription, definition: StoredDefinition, lane: int) -> Ranges:
    """What somebody moved a lane past, as far as its lanes are those of a definition."""
    orders = {each.number: (each.orders, each.lanes) for each in stored.definitions}
    found = NO_POSITIONS
    for leap in stored.leaps:
        if leap.lane == lane and orders[leap.number] == orders[definition.number]:
            found = found.joined(Ranges([(leap.low, leap.high)]))
    return found


def _same_order_definitions(definitions: Sequence[StoredDefinition]) -> list[int]:
    newest = definitions[-1]
    return [each.number for each in definitions if (each.orders, each.lanes) == (newest.orders, newest.lanes)]


class LanePlacement(msgspec.Struct, frozen=True, kw_only=True):
    """Where all lanes are put, and which rows go: those above a position, and up to another if there is one."""

    lanes: tuple[PlacedLane, ...]
    memories: HandledBefore
    """What had been handled before, of what comes again."""
    above: int
    up_to: int | None
    followers: Sequence[int] = ()
    """Rows beyond that go as well: they wait behind one that goes, and come again after it."""

    @property
    def again(self) -> Ranges:
        """What had been handled and comes again, of all lanes together."""
        found = Ranges()
        for lane in self.lanes:
            found = found.joined(lane.replay.beyond(lane.position))
        return found


def placement_of_move(lanes: Sequence[LaneStatus], memories: HandledBefore, to: Cursor) -> LanePlacement:
    """All lanes to one place. Rows below it stay, and so does what is known of them."""
    passed = passed_ranges(to)
    places = [
        PlacedLane(
            lane=lane.number,
            position=to.position,
            ahead=Ranges(to.ahead),
            replay=lane.replay.up_to(to.position),
            leaps=passed.minus(passed_ranges(lane.cursor)),
        )
        for lane in lanes
    ]
    return LanePlacement(lanes=tuple(places), memories=memories, above=to.position, up_to=None)


def placement_of_replay(
    lanes: Sequence[LaneStatus],
    rows: Sequence[int],
    past: HandledHistory,
    memories: HandledBefore,
    start: int,
    end: int | None,
) -> LanePlacement:
    """Back to `start`: what was passed up to `end`, or ever, comes again; what was beyond stays done.

    `rows` are the positions of those above `start` that are not done, and of those beyond `end` that wait behind
    one of them: such messages come too, but they had not been handled. What was passed when it had begun does not
    come. `memories` are those of replays under way.
    """
    last = end if end is not None else max((passed_ranges(lane.cursor).last for lane in lanes), default=0)
    handled = {of: ranges.beyond(start).up_to(last).without(rows) for of, ranges in past.handled.items()}
    followers = [position for position in rows if position > last]
    known = msgspec.structs.replace(past, handled=handled)
    return LanePlacement(
        lanes=tuple(_replayed_lane(lane, known, start, last, followers) for lane in lanes),
        memories={
            of: handled.get(of, NO_POSITIONS).joined(memories.get(of, NO_POSITIONS))
            for of in {*handled, *memories}
        },
        above=start,
        up_to=last,
        followers=followers,
    )


def _replayed_lane(
    lane: LaneStatus, past: HandledHistory, start: int, end: int, followers: Sequence[int]
) -> PlacedLane:
    done = passed_ranges(lane.cursor)
    again = done.beyond(start).up_to(end).minus(past.begun)
    stays = done.minus(again).without(followers)
    position = stays.past(0)
    return PlacedLane(
        lane=lane.number,
        position=position,
        ahead=stays.beyond(position),
        replay=lane.replay.joined(again.both(past.of_lane(lane.number))),
    )


CONFIRM_PAUSES_SECONDS = (0.01, 0.2)
"""Shortest and longest pause between two looks at whether workers have confirmed, in seconds."""
STANDSTILL_SECONDS = 0.5
"""How long nothing goes out at first, while what runs may end. What takes longer is waited for while all go on."""
MAX_STANDSTILL_SECONDS = 5.0
"""As long as this the next standstill may be, if what runs took that long."""

OPERATOR_LIMITS = ("concurrency",)
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


class SubscriptionControl:
    """The actions on one subscription whose progress is in PostgreSQL."""

    def __init__(self, runtime: Runtime, standing: SubscriptionState) -> None:
        if runtime.services.database is None:
            raise MilepostError("progress is kept outside of PostgreSQL: it can only be operated where it is kept")
        self._log = runtime.log
        self._services = runtime.services
        self._progress = runtime.services.progress
        self._life: UUID | None = None
        """In which it was begun to look at the subscription."""
        self._control = runtime.services.control()
        self._tracing = runtime.services.trace()
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
        target, _ = await cursor_of_start(await self._checked_place("to", to), self._log)
        return await self._plan(placement_of_move(self._standing.lanes, {}, target), target.position)

    async def move(self, to: Start, timeout: float, *, force: bool) -> int:
        """Goes on elsewhere; how many deliveries were forgotten."""
        to = await self._checked_place("to", to)
        async with self.behind_barrier("it is being moved", timeout, force=force) as (standing, barrier):
            # The log may have gone back meanwhile.
            target, since = await cursor_of_start(await self._checked_place("to", to), self._log)
            await self._services.cover(target.end, self._log.known_horizon.life)
            memories = await self._control.memories(standing.id)
            return await self._put(standing, barrier, placement_of_move(standing.lanes, memories, target), since)

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

    async def _checked_place(self, name: str, given: Start) -> Start:
        """Somewhere in the log: who moves beyond its end would miss what is still to come."""
        place = checked(name, checked_start, given)
        await refuse_beyond_end(name, place, self._log)
        return place

    async def _bounds(self, start: Start, end: datetime | int | None) -> tuple[int, int | None]:
        first = (await cursor_of_start(await self._checked_place("start", start), self._log))[0].position
        last = None
        if end is not None:
            last = (await cursor_of_start(checked("end", checked_start, end), self._log))[0].position
        if last is not None and last <= first:
            raise ValueError(f"{self._address}: a replay from {first} to {last} has nothing in it")
        return first, last

    async def _replayed(self, standing: SubscriptionState, start: int, end: int | None) -> LanePlacement:
        found = await self._control.rows_between(standing.id, start, end)
        # One that is kept though it is done had been handled.
        rows = [position for position, _, state in found if state != "done"]
        [stored] = await self._tracing.subscriptions(standing.group, standing.name)
        memories = await self._control.memories(standing.id)
        return placement_of_replay(standing.lanes, rows, handled_history(stored), memories, start, end)

    async def _put(
        self, standing: SubscriptionState, barrier: str, placing: LanePlacement, since: Since | None
    ) -> int:
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

    async def _plan(self, placing: LanePlacement, position: int) -> Plan:
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
        return await self._log.count(above, up_to)

    # Changing and deleting

    async def update(self, changes: dict[str, Any]) -> None:
        """Sets limits beside what the code says; None takes one back. Anything else is for the code."""
        if not changes:
            raise ValueError(f"nothing to update: {' or '.join(OPERATOR_LIMITS)} can be")
        for name in changes:
            if name == "paused":
                raise ValueError(PAUSED_IS_FOR_NEW)
            if name not in OPERATOR_LIMITS:
                meant = closest_name(name, OPERATOR_LIMITS)
                hint = f": did you mean {meant!r}?" if meant else ""
                raise DeclaredInCode(
                    f"{self._address}: {name} is declared by its program: change it there, and what runs follows; "
                    f"from here {', '.join(OPERATOR_LIMITS)} can be limited{hint}"
                )
        limits = {
            name: None if value is None else checked(name, whole(1, MAX_COUNTABLE_NUMBER), value)
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
    ) -> AsyncIterator[tuple[SubscriptionState, str]]:
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
            await run_to_end(self._control.lift_barrier(self._standing.id, barrier))

    async def _at_rest(self, timeout: float, barrier: str) -> SubscriptionState:
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
            seconds = max(2 * seconds, min(clock() - begun, MAX_STANDSTILL_SECONDS))
            await self._set_barrier(barrier)

    async def _forced(self, timeout: float, barrier: str | None = None) -> SubscriptionState:
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
        pause, longest = CONFIRM_PAUSES_SECONDS
        while clock() < end:
            if clock() > renewed + BARRIER_RENEW_SECONDS:
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

    async def _drained(self, timeout: float, barrier: str | None = None) -> SubscriptionState:
        """Waits until nobody has a lane; how it stands then."""
        loop = asyncio.get_running_loop()
        end, renewed = loop.time() + timeout, loop.time()
        pause, longest = CONFIRM_PAUSES_SECONDS
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
            if barrier is not None and loop.time() > renewed + BARRIER_RENEW_SECONDS:
                renewed = loop.time()
                await self._control.set_barrier(standing.id, barrier)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, longest)

    async def _stands(self) -> SubscriptionState:
        found = await self._progress.standings(self._standing.group, self._standing.name)
        if not found or found[0].id != self._standing.id:
            raise Busy(f"{self._address}: it was deleted meanwhile")
        return found[0]
