"""A lane that this process holds: what of it runs, what a replay repeats, and whether a limit stops it."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any

from milepost.dispatch import Lane, LimitReached
from milepost.engine.declare.handler import AnyDelivery
from milepost.engine.declare.order import Order, order_from_text
from milepost.engine.declare.stored_definition import order_lane_of, stored_selection
from milepost.engine.subscription_logger import SubscriptionLogger
from milepost.log.message import Message
from milepost.progress.postgres.trace import ranges_from_flat
from milepost.progress.protocol import LaneGrant, PassedBeforeReplay
from milepost.ranges import Ranges


class ReplayMarks:
    """What of a lane a replay brings again, and what is known of how it was handled before."""

    def __init__(self, ranges: Ranges, memories: Sequence[PassedBeforeReplay], order: Order) -> None:
        self._ranges = ranges
        self._passed = [_HandledByDefinition(memory, order) for memory in memories] if ranges else []

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def __contains__(self, message: Message[Any]) -> bool:
        return message.position in self._ranges and any(each.had(message) for each in self._passed)


class _HandledByDefinition:
    """What one definition had passed."""

    def __init__(self, memory: PassedBeforeReplay, order: Order) -> None:
        named = order_from_text(memory.orders, order)
        self._order = named if named.text == memory.orders else None
        self._lanes = memory.lanes
        self._ranges = {lane: ranges_from_flat(stored) for lane, stored in memory.ranges.items()}
        self._selecting = stored_selection(memory.selects)

    def had(self, message: Message[Any]) -> bool:
        """Whether it had handled a message. Who cannot know takes it for new: nothing is left undone."""
        return self._was_passed(message) and self._was_selected(message)

    def _was_passed(self, message: Message[Any]) -> bool:
        if self._order is None:
            # Only a function that is gone knows in which lane it was.
            return all(
                lane in self._ranges and message.position in self._ranges[lane] for lane in range(self._lanes)
            )
        lane = order_lane_of(self._order, message, self._lanes)
        return lane in self._ranges and message.position in self._ranges[lane]

    def _was_selected(self, message: Message[Any]) -> bool:
        return self._selecting is not None and self._selecting.verdict(message).state == "selected"


class HeldLane:
    """The core of a lane, the right to write it, and what of it runs here."""

    def __init__(self, held: LaneGrant, lane: Lane[Message[Any]], order: Order, *, must_load_rows: bool) -> None:
        self.held = held
        self.lane = lane
        self.repeats = ReplayMarks(held.replay, held.memories, order)
        """What had been handled before and is repeated on purpose."""
        self.running = 0
        """How many calls of handlers are under way for it."""
        self.done: list[AnyDelivery] = []
        """Handled in this step of the loop, and settled at its end."""
        self.lost = False
        """Whether what comes of those calls is of no use any more."""
        self.closing = False
        """Whether nothing more is handed out."""
        self.taken_back = False
        """Whether what runs is waited for no longer: it was taken back, and others get it."""
        self.known_action = 0
        """The last action of a person that was known when the lane was taken."""
        self.is_leaving = False
        """Whether its last write has begun."""
        self._waited_for: list[AnyDelivery] = []
        """What ran when it was last reopened."""
        self._reopened = 0
        """How often it was to be given back, and stayed."""
        self._full = False
        self.must_load_rows = must_load_rows
        """Whether rows are to be loaded before anything is handed out: some of them have to run alone."""
        self.exchanging = False
        self.is_unwritten = False
        """Whether it has to stay as it is stored."""
        self.written_at = -inf
        """When it was last written, by the loop's clock, which may have begun a moment ago."""
        self.written = 0
        """How often it was."""
        self._rest = asyncio.Event()

    @property
    def number(self) -> int:
        return self.held.lane

    @property
    def hands_out(self) -> bool:
        """Whether messages of it may go to handlers."""
        return not (self.lost or self.closing or self.must_load_rows)

    @property
    def is_hungry(self) -> bool:
        """Whether it wants messages. A full one does not before half of its window is free, or it starves."""
        if self.lost or self.closing:
            return False
        if self._full and not self.lane.is_half_free and not self.lane.is_starved:
            return False
        return self.lane.room() > 0

    def fill(self, messages: list[Message[Any]], keys: list[str] | None, up_to: int) -> None:
        """Takes messages, as far as there is room."""
        self._full = not self.lane.fill(messages, keys, up_to)

    def ended(self) -> None:
        """Calls have ended, and what came of them is settled."""
        self._rest.set()

    def take_back(self) -> list[AnyDelivery]:
        """What is out goes to others, which is no attempt; returns that."""
        self.taken_back = True
        deliveries = self.lane.deliveries()
        refused = self.lane.give_back(deliveries)
        self._rest.set()
        return [delivery for delivery in deliveries if delivery not in refused]

    def exchange_ended(self) -> None:
        """An exchange has ended."""
        self.exchanging = False
        self._rest.set()

    @contextmanager
    def unwritten(self) -> Iterator[None]:
        """Within this block no exchange begins."""
        self.is_unwritten = True
        try:
            yield
        finally:
            self.is_unwritten = False
            self._rest.set()

    async def at_rest(self) -> None:
        """Waits until nothing of it runs, and no exchange is under way."""
        while self._is_at_work:
            await self.wait_for_change()

    async def closed(self) -> bool:
        """The same, of one that is to be given back; False if it stays after all."""
        reopened = self._reopened
        while self._is_at_work:
            await self.wait_for_change()
            if self._reopened != reopened:
                return False
        # From here on nothing can keep it.
        self.is_leaving = True
        return True

    @property
    def _is_at_work(self) -> bool:
        runs = self.running and not self.taken_back
        return bool(runs or self.done or self.exchanging or self.is_unwritten)

    @property
    def waits(self) -> bool:
        """Whether something still runs that ran when it was wanted back."""
        return (self.closing and not self.is_leaving) or any(each.is_in_force for each in self._waited_for)

    def reopen(self) -> None:
        """It stays: whatever wanted it back wants it no longer, or not now."""
        self._waited_for = self.lane.deliveries()
        self.closing = self.taken_back = False
        self._reopened += 1
        self._rest.set()

    async def wait_for_change(self) -> None:
        """Waits until calls or an exchange of it have ended, or it is here no longer."""
        self._rest.clear()
        await self._rest.wait()

    def is_idle(self, head: int, now: float) -> bool:
        """Whether all up to a position is handled, or cannot be handled now."""
        due = self.lane.wake_at()
        return (
            ((self.lane.reach >= head and self.lane.is_empty) or self._is_stuck(head))
            and not self.exchanging
            and not self.lane.urgent(now)
            and (due is None or due > now)
        )

    def _is_stuck(self, head: int) -> bool:
        """Whether a limit of rows keeps what is here from going on, and nothing else is to be done."""
        lane = self.lane
        if lane.stopped is None or lane.in_flight or lane.has_next or lane.dirty:
            return False
        return lane.reach >= head or not self.is_hungry


LOG_AGAIN_SECONDS = 60.0
"""Seconds between two lines that say so: at a limit a lane may stop and go on with every message."""


class StoppedLanes:
    """Follows the lanes of a subscription that a process holds, and logs when they stop and when all go on.

    `lanes` are these, by number, as they change. `on_report_due` is called when it should be told at
    once how they stand.
    """

    def __init__(
        self, logger: SubscriptionLogger, lanes: Mapping[int, HeldLane], on_report_due: Callable[[], None]
    ) -> None:
        self._logger = logger
        self._lanes = lanes
        self._on_report_due = on_report_due
        self._logged_at = -inf
        self._is_logged = False
        self.limits: dict[int, LimitReached] = {}
        """The limit of each lane that is stopped."""

    def filled(self, owned: HeldLane) -> None:
        """A lane has got messages."""
        if self.limits or owned.lane.stopped is not None:
            self.update()

    def exchanged(self, owned: HeldLane) -> None:
        """A lane has written, and knows how many rows there are."""
        if self.limits or owned.lane.stopped is not None:
            self._pass_on(owned)
            self.update()

    def update(self) -> None:
        """Look at all lanes again: some may be here no longer."""
        stopped = {number: owned.lane.stopped for number, owned in self._lanes.items() if not owned.closing}
        before, self.limits = self.limits, {n: limit for n, limit in stopped.items() if limit is not None}
        if self.limits:
            self._log()
        elif before and self._is_logged:
            self._is_logged = False
            if before.keys() & stopped.keys():
                # Otherwise they are with others, and may stand still there.
                self._logger.warning("reads on: there are fewer such messages than the limit allows")

    def _pass_on(self, owned: HeldLane) -> None:
        """Let stopped lanes ask if this one was told of fewer rows than their limit."""
        for number, limit in self.limits.items():
            other = self._lanes.get(number)
            if other is not None and limit.of(owned.lane.counts) < limit.most <= limit.of(other.lane.counts):
                other.lane.poke()

    def _log(self) -> None:
        now = asyncio.get_running_loop().time()
        if not self._is_logged and now - self._logged_at >= LOG_AGAIN_SECONDS:
            self._logged_at, self._is_logged = now, True
            number, limit = next(iter(self.limits.items()))
            self._logger.error("lane %d reads no further: %s", number, limit, lane=number)
            self._on_report_due()
