"""Report what is pulled and settled in this process: figures to the store, events to listeners."""

import asyncio
import os
import socket
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import inf
from time import monotonic, time
from typing import Any
from uuid import uuid4

import msgspec

from milepost.dispatch import State
from milepost.engine.observe.emitter import EventEmitter
from milepost.engine.observe.listeners import ActiveListeners, Listeners
from milepost.engine.observe.worker_reports import MAX_ERROR_CHARACTERS
from milepost.engine.pull.claims import PulledDelivery, PullRound
from milepost.engine.runtime import Runtime
from milepost.errors import Unavailable
from milepost.log.message import Message
from milepost.log.query import PAGE_BYTES, is_page_full
from milepost.progress.deliveries import (
    Claim,
    ClaimOutcome,
    ClaimReply,
    ClaimRequest,
    ClaimSettlement,
    DeliveryFate,
    ExpiredClaim,
)
from milepost.progress.postgres.deliveries import ClaimStatements
from milepost.progress.protocol import Progress
from milepost.progress.reports import WorkerReport
from milepost.progress.rows import storable_text

PULL_REPORT_SECONDS = 2.0
"""Seconds between two reports."""
MAX_REMEMBERED_CLAIMS = 10_000
"""Of so many claims, each of one or many deliveries, it is remembered when they were made."""
MAX_PULL_LATENCIES = 1000
"""Of so many settlements, the last ones, latencies are told."""
MAX_REPORTED_LATENCIES = 100
"""How many stand for all of these."""


class _PullFigures:
    """What became of one subscription here."""

    def __init__(self) -> None:
        self.settled = 0
        """Since the last report."""
        self.error: str | None = None
        """The last one, if it is to be told yet."""
        self.told: tuple[str | None, float | None] = None, None
        """The last error that was told, and when."""
        self.attempts = 0
        self.seconds = 0.0
        self.latencies: deque[float] = deque(maxlen=MAX_PULL_LATENCIES)

    def took(self, seconds: float, count: int) -> None:
        self.attempts += count
        self.seconds += seconds * count
        self.latencies.extend([seconds] * min(count, MAX_PULL_LATENCIES))

    def report(self, subscription: int, elapsed: float) -> WorkerReport:
        error, at = self.told
        ordered = sorted(self.latencies)
        step = max(1, len(ordered) // MAX_REPORTED_LATENCIES)
        return WorkerReport(
            subscription=subscription,
            rate=round(self.settled / elapsed, 3),
            in_flight=0,
            attempts=self.attempts,
            handling_seconds=round(self.seconds, 6),
            latencies=tuple(round(seconds, 6) for seconds in ordered[step // 2 :: step]),
            error=error,
            error_at=at,
        )


class PullReporter:
    """Counts what this process settles, and tells it now and then, beside a settlement."""

    def __init__(self) -> None:
        self._worker = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self._since = -inf
        self._begun: dict[str, float] = {}
        """By what a claim has that nobody can guess."""
        self._numbers: defaultdict[int, _PullFigures] = defaultdict(_PullFigures)

    def begun(self, claims: Iterable[Claim]) -> None:
        """These were made here just now."""
        self._begun |= dict.fromkeys({claim.id for claim in claims}, monotonic())
        while len(self._begun) > MAX_REMEMBERED_CLAIMS:
            del self._begun[next(iter(self._begun))]

    def seconds(self, claim: Claim) -> float:
        """How long ago it was made here; 0 if that was elsewhere, or too long ago."""
        begun = self._begun.get(claim.id)
        return 0.0 if begun is None else monotonic() - begun

    async def note(self, progress: Progress, settlements: Sequence[ClaimSettlement]) -> None:
        """These were settled."""
        ended = [settlement for settlement in settlements if settlement.outcome != "extend"]
        for (subscription, id_), count in Counter(each.claim.batch for each in ended).items():
            self._count(subscription, id_, count)
        for settlement in ended:
            if settlement.outcome in ("retry", "park"):
                error = storable_text(settlement.reason or settlement.outcome)
                self._numbers[settlement.claim.subscription].error = error
        now = asyncio.get_running_loop().time()
        if now - self._since >= PULL_REPORT_SECONDS:
            elapsed, self._since = now - self._since, now
            await self._tell(progress, elapsed)

    def _count(self, subscription: int, id_: str, count: int) -> None:
        numbers = self._numbers[subscription]
        numbers.settled += count
        begun = self._begun.get(id_)
        # Who settles what another process pulled does not know how long that took.
        if begun is not None:
            numbers.took(monotonic() - begun, count)

    async def _tell(self, progress: Progress, elapsed: float) -> None:
        settled = {subscription: numbers for subscription, numbers in self._numbers.items() if numbers.settled}
        with suppress(Unavailable):
            if any(numbers.error is not None for numbers in settled.values()):
                at = await progress.now()
                for numbers in settled.values():
                    if numbers.error is not None:
                        numbers.told, numbers.error = (numbers.error[:MAX_ERROR_CHARACTERS], at), None
            reports = [numbers.report(subscription, elapsed) for subscription, numbers in settled.items()]
            for numbers in settled.values():
                numbers.settled = 0
            await progress.report(self._worker, reports)


class SettledPull(msgspec.Struct, frozen=True):
    """A delivery of this process that was settled."""

    delivery: PulledDelivery
    outcome: ClaimOutcome
    reason: str
    raised: BaseException | None
    """Why it failed, if something was raised."""
    seconds: float
    """How long it was here."""


class _ExpiredAttempt(msgspec.Struct, frozen=True):
    """A message whose claim has expired."""

    message: Message[Any]
    attempt: int


class _KnownStatus(msgspec.Struct, frozen=True):
    """How a subscription stands, as far as listeners know."""

    status: str = "running"
    is_stalled: bool = False
    learned: float = -inf
    """When that was new, by the monotonic clock."""


class PullEventEmitter:
    """Tells what this process did: what it settled of what it pulled, and whose claims it found to have expired.

    Whether a message is tried again, and when, is decided in the database, and asked there.
    """

    def __init__(self, listeners: Listeners, statements: ClaimStatements) -> None:
        self._listeners = listeners
        self._statements = statements
        self._audience: ActiveListeners | None = None
        self._addresses: dict[int, tuple[str, str]] = {}
        """Name and group, by the numbers of the subscriptions."""
        self._emitters: dict[int, EventEmitter] = {}
        self._standings: dict[int, _KnownStatus] = {}

    async def close(self) -> None:
        """Tells nothing more, until it begins anew."""
        audience, self._audience = self._audience, None
        self._addresses.clear()
        self._emitters.clear()
        self._standings.clear()
        if audience is not None:
            await audience.close()

    def know(self, request: ClaimRequest, reply: ClaimReply) -> None:
        """Something of this subscription was pulled here."""
        self._addresses[reply.id] = request.name, request.group

    async def pulled(self, runtime: Runtime, request: ClaimRequest, reply: ClaimReply, turn: PullRound) -> None:
        """Somebody has pulled here, and found the subscription like this."""
        self.know(request, reply)
        emitter = self._of(reply.id)
        if emitter is None:
            return
        if turn.expired:
            with suppress(Unavailable):
                await self._expired(emitter, runtime, turn.expired)
        self._stands(emitter, reply, turn.asked)

    def _stands(self, emitter: EventEmitter, reply: ClaimReply, asked: float) -> None:
        """Tells what is new. Others pull as well: what was asked before the last news may have an older answer."""
        before = self._standings.get(reply.id, _KnownStatus())
        now = _KnownStatus(reply.status, bool(reply.stalled), monotonic())
        if asked < before.learned or (now.status, now.is_stalled) == (before.status, before.is_stalled):
            return
        self._standings[reply.id] = now
        if now.status != before.status:
            emitter.status(reply.status)
        emitter.breaker(reply.stalled)

    def _of(self, subscription: int) -> EventEmitter | None:
        """None: nobody listens, or nothing of it was pulled here."""
        if (audience := self._heard_by()) is None or subscription not in self._addresses:
            return None
        if subscription not in self._emitters:
            self._emitters[subscription] = EventEmitter(audience, *self._addresses[subscription])
        return self._emitters[subscription]

    def _heard_by(self) -> ActiveListeners | None:
        if self._audience is None:
            self._audience = self._listeners.audience()
        else:
            self._audience.admit()
        return self._audience

    async def _expired(self, emitter: EventEmitter, runtime: Runtime, expired: Sequence[ExpiredClaim]) -> None:
        by_position = {each.position: each for each in expired}
        left = sorted(by_position)
        while left:
            page = await runtime.log.messages_at(left, max_bytes=PAGE_BYTES)
            for message in page:
                each = by_position[message.position]
                tried = _ExpiredAttempt(message, each.fate.attempts)
                emitter.failed(tried, TimeoutError(each.fate.reason), each.seconds)
                emitter.becomes(tried, each.fate)
            is_cut = is_page_full(page, len(left), PAGE_BYTES)
            left = left[bisect_right(left, page[-1].position) :] if is_cut else []

    @property
    def has_listeners(self) -> bool:
        """Whether anybody listens."""
        return self._heard_by() is not None

    async def settled(self, runtime: Runtime, ended: Iterable[SettledPull]) -> None:
        """These were settled here."""
        by_subscription: defaultdict[int, list[SettledPull]] = defaultdict(list)
        for each in ended:
            by_subscription[each.delivery.claim.subscription].append(each)
        for subscription, of_it in by_subscription.items():
            if (emitter := self._of(subscription)) is not None:
                await self._settled(emitter, runtime, subscription, of_it)

    async def _settled(
        self, emitter: EventEmitter, runtime: Runtime, subscription: int, ended: Sequence[SettledPull]
    ) -> None:
        done = [each for each in ended if each.outcome == "ack"]
        emitter.handled_each([each.delivery for each in done], [each.seconds for each in done])
        retried = [each.delivery.position for each in ended if each.outcome == "retry"]
        fates = await self._fates(runtime, subscription, retried) if retried else {}
        for each in ended:
            delivery = each.delivery
            if each.outcome == "skip":
                emitter.skipped(delivery, each.reason)
            elif each.outcome in ("retry", "park"):
                if each.raised is not None:
                    emitter.failed(delivery, each.raised, each.seconds)
                emitter.becomes(delivery, fates.get(delivery.position) or _fate_without_row(each))

    async def _fates(
        self, runtime: Runtime, subscription: int, positions: Sequence[int]
    ) -> dict[int, DeliveryFate]:
        """What rows say. One that somebody else has claimed by now, or is done with, was due at once."""
        found: dict[int, DeliveryFate] = {}
        with suppress(Unavailable):
            claims = self._statements.within(runtime.services.transactions)
            found = await claims.fates(subscription, positions)
        return {
            position: fate
            for position, fate in found.items()
            if fate.state is State.PARKED or fate.due is not None
        }


def _fate_without_row(ended: SettledPull) -> DeliveryFate:
    """What became of one of which no row tells it."""
    is_parked = ended.outcome == "park"
    state = State.PARKED if is_parked else State.RETRYING
    return DeliveryFate(state, ended.delivery.attempt, None if is_parked else time(), ended.reason)
