"""The history of a subscription: where a message is by its cursors, definitions and rows, without I/O."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Any

from milepost.dispatch import State
from milepost.engine.declare.order import Order
from milepost.engine.declare.stored_definition import (
    DecisivePart,
    StoredOrders,
    order_key_of,
    order_lane_of,
    stored_selection,
)
from milepost.engine.lanes.held_lane import ReplayMarks
from milepost.engine.operate.trace.results import TraceState
from milepost.log.message import Message
from milepost.progress.postgres.trace import (
    LaneLeap,
    StoredDefinition,
    StoredRow,
    StoredSubscription,
    TracedFlight,
    has_passed,
    ranges_from_flat,
)

TRACE_STATE_BY_ROW_STATE: dict[State, TraceState] = {
    State.WAITING: "waiting",
    State.RUNNING: "in flight",
    State.RETRYING: "retrying",
    State.UNROUTED: "unrouted",
    State.PARKED: "parked",
    State.SKIPPED: "skipped",
    State.DONE: "done",
}
"""What the states of rows are called where they are told."""


@dataclass(frozen=True, kw_only=True)
class MessageLocation:
    """Where a message is, as far as that is known without its neighbours. The fields are those of `Traced`."""

    message: Message[Any]
    subscription: StoredSubscription
    state: TraceState
    row: StoredRow | None = None
    flight: TracedFlight | None = None
    why: str = ""
    parts: tuple[DecisivePart, ...] = ()
    definition: int | None = None
    reached: bool = True
    since: datetime | None = None
    lane: int | None = None
    key: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class OrderEra:
    """Definitions that order alike, so that each message stays in its lane."""

    definitions: Sequence[StoredDefinition]
    """The newest first."""

    @property
    def oldest(self) -> StoredDefinition:
        """The definition that it began with."""
        return self.definitions[-1]

    def passing(self, lane: int, position: int) -> StoredDefinition | None:
        """The definition by which a lane passed a position that it has passed; None: it had before."""
        return next((each for each in self.definitions if not has_passed(each.begins(lane), position)), None)


def order_eras(definitions: Sequence[StoredDefinition]) -> list[OrderEra]:
    """Definitions, which come in order, by how they order; the newest first."""
    groups = [list(group) for _, group in groupby(definitions, lambda each: (each.orders, each.lanes))]
    return [OrderEra(group[::-1]) for group in reversed(groups)]


OrderedKey = tuple[int, int, str]
"""What is kept in order: a subscription, a lane and a key."""

_UNREADABLE_REASON = "its definition has words that only another version of Milepost knows"


class SubscriptionHistory:
    """The way of one subscription through the log, for questions about many messages."""

    def __init__(self, subscription: StoredSubscription, orders: StoredOrders) -> None:
        self.subscription = subscription
        self._eras = order_eras(subscription.definitions)
        self._cursors = subscription.cursors
        self._flights = {flight.position: flight for flight in subscription.flights}
        self._orders: dict[int, Order | None] = {
            each.number: orders.of(subscription.group, subscription.name, each.orders)
            for each in subscription.definitions
        }

    def find(self, message: Message[Any], row: StoredRow | None) -> MessageLocation:
        """Where a message is; `row` is its delivery, if it has one, read after the subscription was."""
        if row is not None:
            return self._stored(message, row)
        passed = self.passed_by_lanes(message)
        found = self._behind(message) if any(passed) else []
        if not all(passed):
            found.append(self._ahead(message))
        if found[-1].state == "in flight":
            return found[-1]
        return found[0] if len({each.state for each in found}) == 1 else self._unsure(message, found)

    def passed_by_lanes(self, message: Message[Any]) -> list[bool]:
        """Whether its lane has passed a message; where only a function knows which, of each."""
        lanes = self._lanes(self._newest, message)
        return [has_passed(self._cursors[lane], message.position) for lane in lanes]

    def key(self, message: Message[Any]) -> OrderedKey | None:
        """What a message is kept in order by now; None: by nothing, or only a function knows."""
        order = self._orders[self._newest.number]
        if order is None or (key := order_key_of(order, message)) is None:
            return None
        return self.subscription.id, order_lane_of(order, message, self._newest.lanes), key

    def _stored(self, message: Message[Any], row: StoredRow) -> MessageLocation:
        """What a row says, unless a worker has begun with it since."""
        flight = self._flights.get(message.position)
        if flight is not None and (flight.since <= row.since or row.state in (State.SKIPPED, State.DONE)):
            flight = None
        state = TRACE_STATE_BY_ROW_STATE[row.state] if flight is None else "in flight"
        since = row.since if flight is None else flight.since
        return self._found(message, state, row=row, flight=flight, since=since, lane=row.lane, key=row.key)

    def _behind(self, message: Message[Any]) -> list[MessageLocation]:
        """What may have become of a message that its lane has passed, or may have: one, if its lane is known."""
        for leap in self.subscription.leaps:
            if leap.low <= message.position <= leap.high:
                definition = self.subscription.definitions[leap.number - 1]
                lanes = self._lanes(definition, message)
                if leap.lane in lanes:
                    leapt = self._leapt(message, definition, leap)
                    return [leapt] if len(lanes) == 1 else [leapt, *self._passed_somewhere(message)]
        return self._passed_somewhere(message)

    def _leapt(self, message: Message[Any], definition: StoredDefinition, leap: LaneLeap) -> MessageLocation:
        """A message that a person moved the subscription past."""
        found = self._judged(message, definition, reached=True)
        if found.state != "done":
            return found
        return replace(found, state="skipped", why="the subscription was moved past it", since=leap.at)

    def _passed_somewhere(self, message: Message[Any]) -> list[MessageLocation]:
        return [self._passed(message, definition) for definition in self._candidates(message)]

    def _candidates(self, message: Message[Any]) -> list[StoredDefinition | None]:
        """The definitions by which it may have been passed, the newest first: one, if its lane is known.
        None: before all of them."""
        candidates: list[StoredDefinition | None] = []
        for era in self._eras:
            passing = [era.passing(lane, message.position) for lane in self._lanes(era.oldest, message)]
            candidates += {each.number: each for each in passing if each is not None}.values()
            if None not in passing:
                return candidates
        return [*candidates, None]

    def _passed(self, message: Message[Any], definition: StoredDefinition | None) -> MessageLocation:
        """What became of a message that was passed by a definition and left nothing behind."""
        if definition is None or self._is_too_old(message):
            return self._before(message)
        return self._judged(message, definition, reached=True)

    def _ahead(self, message: Message[Any]) -> MessageLocation:
        """What becomes of a message that its lane has not passed."""
        if self._is_too_old(message):
            return replace(self._before(message), reached=False)
        found = self._judged(message, self._newest, reached=False)
        if found.state != "not reached":
            return found
        if flight := self._flights.get(message.position):
            return replace(found, state="in flight", flight=flight, since=flight.since, reached=True)
        return replace(found, note=self._comes_again(message, found.lane))

    def _judged(self, message: Message[Any], definition: StoredDefinition, *, reached: bool) -> MessageLocation:
        """What a definition makes of a message."""
        order = self._orders[definition.number]
        found = self._found(
            message,
            "done" if reached else "not reached",
            definition=definition.number,
            reached=reached,
            lane=None if order is None else order_lane_of(order, message, definition.lanes),
            key=None if order is None else order_key_of(order, message),
        )
        chosen = stored_selection(definition.selects)
        if chosen is None:
            return replace(found, state="unsure" if reached else "not reached", why=_UNREADABLE_REASON)
        verdict = chosen.verdict(message)
        if verdict.state == "selected":
            return found
        return replace(found, state=verdict.state, why=verdict.why, parts=verdict.parts)

    def _before(self, message: Message[Any]) -> MessageLocation:
        first, since = self.subscription.definitions[0], self.subscription.since
        position = min(first.positions)
        why = f"it began after position {position:,}"
        if since is not None:
            why = f"it began with messages of {since.time}"
        elif message.position > position:
            why = "it was there when the subscription began with what was new"
        return self._found(message, "before its start", why=why, definition=first.number)

    def _is_too_old(self, message: Message[Any]) -> bool:
        since = self.subscription.since
        return since is not None and not since.wants(message)

    @property
    def _newest(self) -> StoredDefinition:
        return self.subscription.definitions[-1]

    def _comes_again(self, message: Message[Any], lane: int | None) -> str | None:
        if lane is None:
            return None
        replay = ranges_from_flat(self.subscription.lanes[lane].replay)
        order = self._orders[self._newest.number]
        if order is None or message not in ReplayMarks(replay, self.subscription.memories or (), order):
            return None
        return "it was handled before, and a replay brings it again"

    def _unsure(self, message: Message[Any], found: Sequence[MessageLocation]) -> MessageLocation:
        """What cannot be decided without the function that a subscription orders by."""
        low, high = min(self._positions()), max(self._positions())
        states = " or ".join(dict.fromkeys(each.state for each in found))
        why = (
            f"it is {states}: only a program with the function that it orders by knows its lane, "
            f"and lanes stand between positions {low:,} and {high:,}"
        )
        return self._found(message, "unsure", why=why, reached=all(each.reached for each in found))

    def _positions(self) -> list[int]:
        return [cursor.position for cursor in self._cursors]

    def _lanes(self, definition: StoredDefinition, message: Message[Any]) -> Sequence[int]:
        """The lane of a message; where only a function knows it, all that it may be."""
        order = self._orders[definition.number]
        return range(definition.lanes) if order is None else [order_lane_of(order, message, definition.lanes)]

    def _found(self, message: Message[Any], state: TraceState, **known: Any) -> MessageLocation:
        return MessageLocation(message=message, subscription=self.subscription, state=state, **known)
