"""All that there is to say of where a message is: with its neighbours, its lane and the log."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from milepost.engine.trace.traced import Fate, MessageAt, Neighbour, Traced
from milepost.engine.trace.way import Key
from milepost.engine.trace.whereabouts import BY_ROW, Whereabouts
from milepost.log.message import Message
from milepost.progress.tracing import Around, StoredLane

_GOES_ON: frozenset[Fate] = frozenset({"not reached", "retrying", "in flight"})
"""States that end by themselves, unless something keeps the subscription from going on."""
_HOLDING: frozenset[Fate] = frozenset({"in flight", "retrying", "parked", "unrouted"})
"""States in which a message may hold others of its key."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What was asked of the log beside the messages."""

    streams: Mapping[int, tuple[str, int]]
    """Stream and version of neighbours, by position."""
    horizon: int
    """Everything up to here is final; only known if something was not reached."""
    in_hand: Mapping[Key, int]
    """The lowest position of a key that a worker has in hand."""
    holders: tuple[str, ...]
    """Who keeps the log from going on."""


def message_at(message: Message[Any]) -> MessageAt:
    """What a trace says of a message itself."""
    return MessageAt(message.position, message.stream, message.version, message.id, message.type, message.time)


def told(found: Whereabouts, around: Around | None, surroundings: Surroundings) -> Traced:
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
        stopped=_stopped(found, lane, surroundings) if found.state in _GOES_ON and flight is None else None,
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


def _neighbour(position: int, state: Fate, surroundings: Surroundings) -> Neighbour:
    stream, version = surroundings.streams.get(position, (None, None))
    return Neighbour(position, state, stream, version)


def _behind_flight(traced: Traced, found: Whereabouts, surroundings: Surroundings) -> Traced:
    """What is not reached waits for an earlier one of its key that a worker has in hand."""
    if traced.state != "not reached" or found.lane is None or found.key is None:
        return traced
    holder = surroundings.in_hand.get((found.subscription.id, found.lane, found.key))
    if holder is None or holder >= traced.message.position:
        return traced
    return msgspec.structs.replace(traced, waiting_behind=_neighbour(holder, "in flight", surroundings))


def _with_neighbours(traced: Traced, around: Around, surroundings: Surroundings) -> Traced:
    # Whether a parked one lets those go on that have no row yet is for the program to say.
    is_held = traced.state == "waiting" or (traced.state == "not reached" and around.holder_state != "parked")
    if is_held and around.holder is not None and around.holder_state is not None:
        return msgspec.structs.replace(
            traced, waiting_behind=_neighbour(around.holder, BY_ROW[around.holder_state], surroundings)
        )
    if traced.state not in _HOLDING:
        return traced
    first = tuple(_neighbour(position, "waiting", surroundings) for position in around.first)
    return msgspec.structs.replace(traced, holds=around.waiting, holds_first=first)


def _stopped(found: Whereabouts, lane: StoredLane | None, surroundings: Surroundings) -> str | None:
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
