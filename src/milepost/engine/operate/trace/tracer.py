"""Load what a trace needs, ask workers what they have in hand, and describe each message."""

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import msgspec

from milepost.engine.declare.declaration import unknown_subscription
from milepost.engine.declare.handler import AnyMessage
from milepost.engine.declare.stored_definition import StoredOrders
from milepost.engine.operate.trace.history import (
    TRACE_STATE_BY_ROW_STATE,
    MessageLocation,
    OrderedKey,
    SubscriptionHistory,
)
from milepost.engine.operate.trace.results import MessageAt, Neighbour, Trace, Traced, TraceState
from milepost.engine.runtime import Runtime
from milepost.errors import InvalidMessage, MilepostError
from milepost.log.codec import check_stream, check_text
from milepost.log.message import Message
from milepost.log.query import Query
from milepost.names import MAX_POSITION_NUMBER
from milepost.progress.postgres.trace import (
    KeyedMessage,
    KeyNeighbours,
    PostgresTrace,
    StoredLane,
    StoredSubscription,
    TracedWorker,
)

WORKER_ANSWER_SECONDS = 0.5
"""Seconds that workers have to answer; one whose event loop is blocked, or that is dead, does not."""
ANSWER_POLL_SECONDS = (0.005, 0.05)
"""Shortest and longest time between two looks for answers, in seconds."""


class WorkerQuestion:
    """Asks those who may have messages in hand without anything being stored of it."""

    def __init__(self, tracing: PostgresTrace) -> None:
        self._tracing = tracing

    async def ask(self, found: Sequence[MessageLocation]) -> set[TracedWorker] | None:
        """Who has not answered; None: nobody had to be asked."""
        asked = {worker for each in found for worker in _possible_holders(each)}
        if not asked:
            return None
        since = await self._tracing.ask()
        loop = asyncio.get_running_loop()
        over = loop.time() + WORKER_ANSWER_SECONDS
        pause, longest = ANSWER_POLL_SECONDS
        while asked and loop.time() < over:
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)
            asked -= await self._tracing.answered(since)
        return asked


def with_silent_worker(found: MessageLocation, silent: set[TracedWorker]) -> MessageLocation:
    """The same, with a word about who has it in hand perhaps and does not say so."""
    who = next((worker for worker in _possible_holders(found) if worker in silent), None)
    if who is None or found.note is not None:
        return found
    words = "does not answer" if found.flight else "may have it in hand, and does not answer"
    return replace(found, note=f"{who.name} {words}")


def _possible_holders(found: MessageLocation) -> Iterator[TracedWorker]:
    subscription, row = found.subscription, found.row
    if found.flight is not None:
        yield TracedWorker(subscription.id, found.flight.worker)
        return
    is_due = row is not None and row.due is not None and row.due <= subscription.now
    # One is unsure also because nobody here knows its lane: a worker that has it in hand knows more.
    may_be_in_hand = found.state == "not reached" or (found.state == "unsure" and not found.reached)
    if not may_be_in_hand and not (found.state == "retrying" and is_due):
        return
    lanes = subscription.lanes if found.lane is None else subscription.lanes[found.lane : found.lane + 1]
    for lane in lanes:
        if lane.owner is not None:
            yield TracedWorker(subscription.id, lane.owner)


_STATES_THAT_GO_ON: frozenset[TraceState] = frozenset({"not reached", "retrying", "in flight"})
"""States that end by themselves, unless something keeps the subscription from going on."""
_HOLDING_STATES: frozenset[TraceState] = frozenset({"in flight", "retrying", "parked", "unrouted"})
"""States in which a message may hold others of its key."""


@dataclass(frozen=True, kw_only=True)
class TraceSurroundings:
    """What was asked of the log beside the messages."""

    streams: Mapping[int, tuple[str, int]]
    """Stream and version of neighbours, by position."""
    horizon: int
    """Everything up to here is final; only known if something was not reached."""
    in_hand: Mapping[OrderedKey, int]
    """The lowest position of a key that a worker has in hand."""
    holders: tuple[str, ...]
    """Who keeps the log from going on."""


def message_at(message: Message[Any]) -> MessageAt:
    """What a trace says of a message itself."""
    return MessageAt(message.position, message.stream, message.version, message.id, message.type, message.time)


def traced_message(
    found: MessageLocation, around: KeyNeighbours | None, surroundings: TraceSurroundings
) -> Traced:
    """Everything about one message, for one subscription."""
    subscription, row, flight = found.subscription, found.row, found.flight
    lane = None if found.lane is None or found.lane >= len(subscription.lanes) else subscription.lanes[found.lane]
    traced = Traced(
        message=message_at(found.message),
        group=subscription.group,
        subscription=subscription.name,
        state=found.state,
        why=found.why,
        parts=found.parts,
        definition=found.definition,
        reached=found.reached,
        lane=found.lane,
        owner=flight.worker if flight else lane.owner if lane else None,
        since=found.since,
        stopped=_why_stopped(found, lane, surroundings)
        if found.state in _STATES_THAT_GO_ON and flight is None
        else None,
        note=found.note,
    )
    if row is not None:
        traced = msgspec.structs.replace(
            traced,
            attempts=row.attempts,
            total=row.total,
            due=row.due if traced.state == "retrying" else None,
            reason=row.reason,
            error=row.error,
        )
    if traced.state == "not reached" and lane is not None:
        traced = msgspec.structs.replace(traced, behind=traced.message.position - lane.position)
    if around is None:
        return traced
    traced = _with_neighbours(traced, around, surroundings)
    return traced if traced.waiting_behind else _behind_flight(traced, found, surroundings)


def _neighbour_at(position: int, state: TraceState, surroundings: TraceSurroundings) -> Neighbour:
    stream, version = surroundings.streams.get(position, (None, None))
    return Neighbour(position, state, stream, version)


def _behind_flight(traced: Traced, found: MessageLocation, surroundings: TraceSurroundings) -> Traced:
    """What is not reached waits for an earlier one of its key that a worker has in hand."""
    if traced.state != "not reached" or found.lane is None or found.key is None:
        return traced
    holder = surroundings.in_hand.get((found.subscription.id, found.lane, found.key))
    if holder is None or holder >= traced.message.position:
        return traced
    return msgspec.structs.replace(traced, waiting_behind=_neighbour_at(holder, "in flight", surroundings))


def _with_neighbours(traced: Traced, around: KeyNeighbours, surroundings: TraceSurroundings) -> Traced:
    # Whether a parked one lets those go on that have no row yet is for the program to say.
    is_held = traced.state == "waiting" or (traced.state == "not reached" and around.holder_state != "parked")
    if is_held and around.holder is not None and around.holder_state is not None:
        return msgspec.structs.replace(
            traced,
            waiting_behind=_neighbour_at(
                around.holder, TRACE_STATE_BY_ROW_STATE[around.holder_state], surroundings
            ),
        )
    if traced.state not in _HOLDING_STATES:
        return traced
    first = tuple(_neighbour_at(position, "waiting", surroundings) for position in around.first)
    return msgspec.structs.replace(traced, holds=around.waiting, holds_first=first)


def _why_stopped(found: MessageLocation, lane: StoredLane | None, surroundings: TraceSurroundings) -> str | None:
    """What keeps a message from going on, in words."""
    subscription = found.subscription
    if found.message.position > surroundings.horizon:
        because = f", because of {surroundings.holders[0]}" if surroundings.holders else ""
        return f"the log is final only up to position {surroundings.horizon:,}{because}"
    if subscription.status == "paused":
        return "the subscription is paused"
    if subscription.barrier is not None:
        return subscription.barrier
    if not any(each.held for each in ([lane] if lane else subscription.lanes)):
        return "no worker has its lane"
    if subscription.stalled:
        return f"the subscription is stalled: {subscription.stalled}"
    stopped = next((each.stopped for each in ([lane] if lane else subscription.lanes) if each.stopped), None)
    return f"its lane reads no further: {stopped}" if stopped and found.state == "not reached" else None


DEFAULT_TRACED_MESSAGES = 100
"""How many messages of a stream are traced, unless the caller says otherwise."""
MAX_TRACED_MESSAGES = 1000
"""How many at the most."""


class Tracer:
    """Finds messages, and what became of each for each subscription of every group."""

    def __init__(self, runtime: Runtime) -> None:
        if runtime.services.database is None:
            raise MilepostError(
                f"progress is kept {runtime.services.progress_location.value}: messages cannot be traced there"
            )
        self._log = runtime.log
        self._orders = StoredOrders(runtime.group, runtime.subscriptions)
        self.tracing = runtime.services.trace()

    async def trace(
        self,
        target: str | UUID,
        *,
        group: str | None,
        subscription: str | None,
        limit: int,
        before_version: int | None,
    ) -> Trace:
        """The newest messages of a stream, or those with an id, and what became of them."""
        check_trace_request(target, limit, before_version, group, subscription)
        messages = await self._messages(target, limit, before_version)
        stored = await self._subscriptions(group, subscription)
        found = await self.locate(messages, stored)
        if (silent := await WorkerQuestion(self.tracing).ask(found)) is not None:
            # What was in hand when they were asked is known now, or has been passed since.
            stored = await self._subscriptions(group, subscription)
            found = [with_silent_worker(each, silent) for each in await self.locate(messages, stored)]
        traced = await self.describe(found)
        first = messages[0].version if messages and messages[0].stream == target else 1
        return Trace(
            messages=tuple(map(message_at, messages)),
            traced=tuple(sorted(traced, key=lambda each: each.message.position)),
            before_version=first if first > 1 else None,
        )

    async def subscription(self, group: str, name: str) -> StoredSubscription:
        """One that is there; raises `UnknownSubscription`."""
        return (await self._subscriptions(group, name))[0]

    def way(self, subscription: StoredSubscription) -> SubscriptionHistory:
        """The way of a subscription through the log."""
        return SubscriptionHistory(subscription, self._orders)

    async def locate(
        self, messages: Sequence[AnyMessage], subscriptions: Sequence[StoredSubscription]
    ) -> list[MessageLocation]:
        """Where messages are, by subscription."""
        ways = [self.way(subscription) for subscription in subscriptions]
        ids, positions = [way.subscription.id for way in ways], [message.position for message in messages]
        # Rows are read after the cursors, which pass nothing without one.
        rows = await self.tracing.rows(ids, positions) if ids and positions else {}
        return [
            way.find(message, rows.get((way.subscription.id, message.position)))
            for way in ways
            for message in messages
        ]

    async def describe(self, found: Sequence[MessageLocation]) -> list[Traced]:
        """The same with all that there is to say of each."""
        around = await self._around(found)
        in_hand = await self._in_hand(found)
        positions = {at for each in around.values() for at in (each.holder, *each.first) if at is not None}
        positions |= set(in_hand.values())
        waits_for_log = any(each.state == "not reached" for each in found)
        horizon = (await self._log.current_horizon()).position if waits_for_log else MAX_POSITION_NUMBER
        is_held = any(each.message.position > horizon for each in found)
        surroundings = TraceSurroundings(
            streams=await self._streams_at(positions),
            horizon=horizon,
            in_hand=in_hand,
            holders=tuple(map(str, await self._log.horizon_holders())) if is_held else (),
        )
        return [traced_message(each, around.get(number), surroundings) for number, each in enumerate(found)]

    async def _subscriptions(self, group: str | None, name: str | None) -> list[StoredSubscription]:
        """All, or those that are meant, of which there has to be one."""
        found = await self.tracing.subscriptions(group, name)
        if found or (group is None and name is None):
            return found
        known = [(each.group, each.name) for each in await self.tracing.subscriptions()]
        raise unknown_subscription(group, name, known)

    async def _messages(self, target: str | UUID, limit: int, before_version: int | None) -> list[AnyMessage]:
        if isinstance(target, str):
            check_stream(target)
            if found := await self._of_stream(target, limit, before_version):
                return found
        id_ = _as_id(target)
        return [] if id_ is None else await self._of_id(id_, limit)

    async def _of_stream(self, stream: str, limit: int, before_version: int | None) -> list[AnyMessage]:
        newest = before_version is None
        low = 0 if before_version is None else max(0, before_version - 1 - limit)
        pages = self._log.stream_pages(stream, Query(backwards=newest), after_version=low, limit=limit)
        found = [
            message
            async for page in pages
            for message in page
            if message.version < (before_version or MAX_POSITION_NUMBER)
        ]
        return found[::-1] if newest else found

    async def _of_id(self, id_: UUID, limit: int) -> list[AnyMessage]:
        positions = await self._log.find(id_, limit=limit)
        return await self._log.messages_at(positions) if positions else []

    async def _around(self, found: Sequence[MessageLocation]) -> dict[int, KeyNeighbours]:
        """What is stored of the keys of those that hold others, or are held."""
        asked = {
            number: KeyedMessage(each.subscription.id, each.lane, each.key, each.message.position)
            for number, each in enumerate(found)
            if each.lane is not None
            and each.key is not None
            and (each.row is not None or each.state == "not reached")
        }
        return dict(zip(asked, await self.tracing.around(list(asked.values())), strict=True))

    async def _in_hand(self, found: Sequence[MessageLocation]) -> dict[OrderedKey, int]:
        """By subscription, lane and key, the lowest position that workers have in hand, where others may wait."""
        ways = {
            each.subscription.id: self.way(each.subscription)
            for each in found
            if each.state == "not reached" and each.key is not None and each.subscription.flights
        }
        positions = {flight.position for way in ways.values() for flight in way.subscription.flights}
        if not positions:
            return {}
        messages = await self._log.messages_at(sorted(positions))
        lowest: dict[OrderedKey, int] = {}
        for way in ways.values():
            flights = {flight.position for flight in way.subscription.flights}
            for message in messages:
                if message.position in flights and (key := way.key(message)) is not None:
                    lowest.setdefault(key, message.position)
        return lowest

    async def _streams_at(self, positions: Collection[int]) -> dict[int, tuple[str, int]]:
        """Stream and version of the messages at positions, as far as they are there."""
        if not positions:
            return {}
        found = await self._log.streams_at(sorted(positions))
        return {position: (stream, version) for position, stream, version in found}


def _as_id(target: str | UUID) -> UUID | None:
    if isinstance(target, UUID):
        return target
    try:
        return UUID(target)
    except ValueError:
        return None


def check_trace_request(
    target: str | UUID, limit: int, before_version: int | None, group: str | None, subscription: str | None
) -> None:
    """Refuse what no trace can be of, and no page of one."""
    if not isinstance(target, str | UUID):
        raise InvalidMessage("target", f"a stream's name or a message's id is wanted, not {target!r}")
    _check_whole_number("limit", limit, 1, MAX_TRACED_MESSAGES)
    if before_version is not None:
        _check_whole_number("before_version", before_version, 1, MAX_POSITION_NUMBER)
    for field, name in (("group", group), ("subscription", subscription)):
        if name is not None:
            check_text(field, name)


def _check_whole_number(name: str, value: int, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise InvalidMessage(name, f"a whole number from {least:,} to {most:,} is wanted, not {value!r}")
