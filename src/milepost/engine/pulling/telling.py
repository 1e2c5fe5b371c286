"""Tells listeners what becomes of what is pulled."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import inf
from time import monotonic, time
from typing import Any

import msgspec

from milepost.dispatch import State
from milepost.engine.listeners import Audience, Listeners
from milepost.engine.place import Place
from milepost.engine.pulling.pulled import PulledDelivery
from milepost.engine.pulling.turn import Turn
from milepost.engine.telling import Telling
from milepost.errors import Unavailable
from milepost.log.message import Message
from milepost.log.reader import Reader
from milepost.progress.pulling import Expired, Fate, Outcome, PostgresPulling, Reply, Request


class Ended(msgspec.Struct, frozen=True):
    """A delivery of this process that was settled."""

    delivery: PulledDelivery
    outcome: Outcome
    reason: str
    raised: BaseException | None
    """Why it failed, if something was raised."""
    seconds: float
    """How long it was here."""


class _Tried(msgspec.Struct, frozen=True):
    """A message whose claim has expired."""

    message: Message[Any]
    attempt: int


class _Standing(msgspec.Struct, frozen=True):
    """How a subscription stands, as far as listeners know."""

    status: str = "running"
    is_stalled: bool = False
    learned: float = -inf
    """When that was new, by the monotonic clock."""


class PullTelling:
    """Tells what this process did: what it settled of what it pulled, and whose claims it found to have expired.

    Whether a message is tried again, and when, is decided in the database, and asked there.
    """

    def __init__(self, listeners: Listeners, pulling: PostgresPulling, reader: Reader) -> None:
        self._listeners = listeners
        self._pulling = pulling
        self._reader = reader
        self._audience: Audience | None = None
        self._addresses: dict[int, tuple[str, str]] = {}
        """Name and group, by the numbers of the subscriptions."""
        self._tellings: dict[int, Telling] = {}
        self._standings: dict[int, _Standing] = {}

    async def close(self) -> None:
        """Tells nothing more, until it begins anew."""
        audience, self._audience = self._audience, None
        self._addresses.clear()
        self._tellings.clear()
        self._standings.clear()
        if audience is not None:
            await audience.close()

    def know(self, request: Request, reply: Reply) -> None:
        """Something of this subscription was pulled here."""
        self._addresses[reply.id] = request.name, request.group

    async def pulled(self, place: Place, request: Request, reply: Reply, turn: Turn) -> None:
        """Somebody has pulled here, and found the subscription like this."""
        self.know(request, reply)
        telling = self._of(reply.id)
        if telling is None:
            return
        if turn.expired:
            with suppress(Unavailable):
                await self._expired(telling, place, turn.expired)
        self._stands(telling, reply, turn.asked)

    def _stands(self, telling: Telling, reply: Reply, asked: float) -> None:
        """Tells what is new. Others pull as well: what was asked before the last news may have an older answer."""
        before = self._standings.get(reply.id, _Standing())
        now = _Standing(reply.status, bool(reply.stalled), monotonic())
        if asked < before.learned or (now.status, now.is_stalled) == (before.status, before.is_stalled):
            return
        self._standings[reply.id] = now
        if now.status != before.status:
            telling.status(reply.status)
        telling.breaker(reply.stalled)

    def _of(self, subscription: int) -> Telling | None:
        """None: nobody listens, or nothing of it was pulled here."""
        if (audience := self._heard_by()) is None or subscription not in self._addresses:
            return None
        if subscription not in self._tellings:
            self._tellings[subscription] = Telling(audience, *self._addresses[subscription])
        return self._tellings[subscription]

    def _heard_by(self) -> Audience | None:
        if self._audience is None:
            self._audience = self._listeners.audience()
        else:
            self._audience.admit()
        return self._audience

    async def _expired(self, telling: Telling, place: Place, expired: Sequence[Expired]) -> None:
        by_position = {each.position: each for each in expired}
        async for page in self._reader.pages_at(place.log.database, list(by_position)):
            for message in page:
                each = by_position[message.position]
                tried = _Tried(message, each.fate.attempts)
                telling.failed(tried, TimeoutError(each.fate.reason), each.seconds)
                telling.becomes(tried, each.fate)

    @property
    def is_heard(self) -> bool:
        """Whether anybody listens."""
        return self._heard_by() is not None

    async def settled(self, place: Place, ended: Iterable[Ended]) -> None:
        """These were settled here."""
        by_subscription: defaultdict[int, list[Ended]] = defaultdict(list)
        for each in ended:
            by_subscription[each.delivery.claim.subscription].append(each)
        for subscription, of_it in by_subscription.items():
            if (telling := self._of(subscription)) is not None:
                await self._settled(telling, place, subscription, of_it)

    async def _settled(self, telling: Telling, place: Place, subscription: int, ended: Sequence[Ended]) -> None:
        done = [each for each in ended if each.outcome == "ack"]
        telling.handled_each([each.delivery for each in done], [each.seconds for each in done])
        retried = [each.delivery.position for each in ended if each.outcome == "retry"]
        fates = await self._fates(place, subscription, retried) if retried else {}
        for each in ended:
            delivery = each.delivery
            if each.outcome == "skip":
                telling.skipped(delivery, each.reason)
            elif each.outcome in ("retry", "park"):
                if each.raised is not None:
                    telling.failed(delivery, each.raised, each.seconds)
                telling.becomes(delivery, fates.get(delivery.position) or _decided(each))

    async def _fates(self, place: Place, subscription: int, positions: Sequence[int]) -> dict[int, Fate]:
        """What rows say. One that somebody else has claimed by now, or is done with, was due at once."""
        found: dict[int, Fate] = {}
        with suppress(Unavailable):
            found = await self._pulling.fates(place.services.transactions, subscription, positions)
        return {
            position: fate
            for position, fate in found.items()
            if fate.state is State.PARKED or fate.due is not None
        }


def _decided(ended: Ended) -> Fate:
    """What became of one of which no row tells it."""
    is_parked = ended.outcome == "park"
    state = State.PARKED if is_parked else State.RETRYING
    return Fate(state, ended.delivery.attempt, None if is_parked else time(), ended.reason)
