"""Settling deliveries, and what each way of it must come to."""

from collections.abc import Sequence
from typing import TypeAlias

from dispatch.simulation.evidence import Fate
from dispatch.simulation.holding import Claim, Holding
from dispatch.simulation.message import Message
from dispatch.simulation.setup import limit_of, waits_of
from dispatch.simulation.violation import ensure
from milepost.dispatch.delivery import LaneDelivery, State

Deliveries: TypeAlias = Sequence[LaneDelivery[Message]]
Cause: TypeAlias = type[BaseException] | None


def ack(holding: Holding, deliveries: Deliveries) -> None:
    """They are done."""
    claims, refused = _end(holding, deliveries)
    _compare(holding.lane.ack(deliveries), refused)
    holding.acked.update(claim.position for claim in claims if not _is_skipped(holding, claim))
    holding.store.handled.update(claim.delivery.message.id for claim in claims)
    holding.outcomes += [True] * len(claims)


def retry(
    holding: Holding, deliveries: Deliveries, after: float | None = None, count: bool = True, cause: Cause = None
) -> None:
    """They failed."""
    claims, refused = _end(holding, deliveries)
    answer = holding.lane.retry(
        deliveries, holding.store.now, after=after, count=count, reason="failed", cause=cause
    )
    _compare(answer, refused)
    for claim in claims:
        fail(holding, claim, after, count, cause)


def park(holding: Holding, deliveries: Deliveries) -> None:
    """They are given up."""
    claims, refused = _end(holding, deliveries)
    _compare(holding.lane.park(deliveries, holding.store.now, reason="parked"), refused)
    now = holding.store.now
    for claim in claims:
        holding.outcomes.append(False)
        options = tuple((attempts + 1, True) for attempts in _counts(holding, claim))
        _decide(holding, claim, Fate(options, now, (now, now)))


def give_back(holding: Holding, deliveries: Deliveries) -> None:
    """They were not tried."""
    _, refused = _end(holding, deliveries)
    _compare(holding.lane.give_back(deliveries), refused)


def extend(holding: Holding, deliveries: Deliveries, seconds: float) -> None:
    """They get more time."""
    refused = [delivery for delivery in deliveries if delivery not in holding.open]
    _compare(holding.lane.extend(deliveries, holding.store.now, seconds), refused)
    for delivery in deliveries:
        if (claim := holding.open.get(delivery)) is not None:
            claim.deadline = holding.store.now + seconds
            ensure(delivery.deadline == claim.deadline, f"{delivery.deadline} is not {claim.deadline}")


def stop(holding: Holding, delivery: LaneDelivery[Message]) -> None:
    """It is tried again, and its consumer gets no more."""
    claims, refused = _end(holding, [delivery])
    consumer = delivery.consumer
    answer = holding.lane.retry([delivery], holding.store.now, reason="stopped")
    if not answer and consumer is not None:
        holding.lane.leave(consumer)
    _compare(answer, refused)
    for claim in claims:
        fail(holding, claim)
    if claims and consumer is not None:
        _end(holding, of_consumer(holding, consumer))
        holding.consumers.leave(consumer)


def expire(holding: Holding) -> None:
    """What has timed out comes back, each an attempt."""
    now = holding.store.now
    late = {delivery for delivery, claim in holding.open.items() if claim.deadline and claim.deadline <= now}
    late.difference_update(holding.committing())
    expired = holding.lane.overdue(now)
    _compare(holding.lane.retry(expired, now, reason="timed out"), [])
    ensure(set(expired) == late, f"{len(expired)} timed out, instead of {len(late)}")
    for claim in _end(holding, expired)[0]:
        fail(holding, claim)


def leave(holding: Holding, consumer: str) -> None:
    """A consumer goes: what it has goes to others."""
    holding.lane.leave(consumer)
    _end(holding, of_consumer(holding, consumer))
    holding.consumers.leave(consumer)


def lose(holding: Holding, consumer: str) -> None:
    """A consumer vanishes: what it has counts as an attempt of each message, and as one failure of all."""
    holding.lane.lose(consumer, holding.store.now)
    ended = _end(holding, of_consumer(holding, consumer))[0]
    holding.outcomes += [False, *[None] * (len(ended) - 1)] if ended else []
    for claim in ended:
        put_off(holding, claim)
    holding.consumers.leave(consumer)


def of_consumer(holding: Holding, consumer: str) -> Deliveries:
    return [delivery for delivery in holding.open if delivery.consumer == consumer]


def fail(
    holding: Holding, claim: Claim, after: float | None = None, count: bool = True, cause: Cause = None
) -> None:
    """Notes that an attempt failed, and what that must come to."""
    holding.outcomes.append(False if count else None)
    put_off(holding, claim, after, count, cause)


def put_off(
    holding: Holding, claim: Claim, after: float | None = None, count: bool = True, cause: Cause = None
) -> None:
    """Notes what a failed attempt must come to."""
    now, settings = holding.store.now, holding.settings
    options, waits = [], []
    for counted in _counts(holding, claim):
        attempts = counted + 1 if count else counted
        options.append((attempts, count and attempts >= limit_of(settings, cause)))
        if not count or after is not None:
            waits += [after or 0.0]
        else:
            waits += waits_of(settings, cause, attempts)
    _decide(holding, claim, Fate(tuple(options), now, (now + min(waits), now + max(waits))))


def _counts(holding: Holding, claim: Claim) -> set[int]:
    """Attempts before this one; a person may have started the count anew meanwhile."""
    row = holding.row(claim.position)
    if claim.position in holding.store.touched and row is not None:
        return {claim.counted, row.attempts}
    return {claim.counted}


def _decide(holding: Holding, claim: Claim, fate: Fate) -> None:
    if not _is_skipped(holding, claim):
        holding.fates[claim.position] = fate


def _is_skipped(holding: Holding, claim: Claim) -> bool:
    """Whether a person skipped it and the owner knows."""
    row = holding.row(claim.position)
    return row is not None and row.state is State.SKIPPED and claim.position in holding.told_skips


def _end(holding: Holding, deliveries: Deliveries) -> tuple[list[Claim], list[LaneDelivery[Message]]]:
    """Ends claims; those that were in force, and the deliveries whose claims were not, or are a transaction's."""
    ended, refused = [], []
    for delivery in deliveries:
        if delivery in holding.open and delivery not in holding.committing():
            ended.append(holding.open.pop(delivery))
            holding.past.append(delivery)
        else:
            refused.append(delivery)
    return ended, refused


def _compare(refused: Deliveries, expected: Deliveries) -> None:
    ensure(list(refused) == list(expected), f"{len(refused)} claims were refused instead of {len(expected)}")
