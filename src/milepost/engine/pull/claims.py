"""Claim deliveries: those that are ready, then those that the next part of the log becomes."""

import asyncio
import random
from collections.abc import Iterable, Mapping
from datetime import datetime
from math import inf
from time import monotonic
from typing import Any

import msgspec

from milepost.engine.declare.declaration import unknown_subscription
from milepost.engine.pull.scanner import LogOffer, PullScanner
from milepost.errors import MilepostError, Unavailable
from milepost.log.message import Message
from milepost.log.protocol import TransactionLog
from milepost.progress.deliveries import (
    Claim,
    ClaimedRow,
    ClaimReply,
    ClaimRequest,
    ClaimSettlement,
    ExpiredClaim,
    LaneLocked,
    NotPulled,
)
from milepost.progress.postgres.deliveries import PostgresClaims


class PulledDelivery(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A message for whoever pulled it, who settles it before its time is over: `mp.settle`."""

    message: Message[Any]
    attempt: int
    """Which attempt this is, from 1."""
    replay: bool
    """Whether it had been handled before, and comes again because a person wants that."""
    expires: datetime
    """When it goes to others unless it is settled, by the database's clock. That counts as an attempt."""
    claim: Claim

    @property
    def position(self) -> int:
        """Of the message, in the log."""
        return self.claim.position

    @property
    def token(self) -> str:
        """What it can be settled by from elsewhere: a text that nobody can guess."""
        return self.claim.token

    def __repr__(self) -> str:
        return f"PulledDelivery({self.message!r}, attempt {self.attempt})"


class PulledDeliveries(tuple[PulledDelivery, ...]):
    """The deliveries of one pull, by position."""

    more: bool
    """Whether there may be more right now: it reached its limit, or has not looked at all of the log yet."""

    def __new__(cls, deliveries: Iterable[PulledDelivery], *, more: bool) -> "PulledDeliveries":
        made = super().__new__(cls, deliveries)
        made.more = more
        return made


CREATE_HINT = ': create it with mp.create_subscription(…, tracking="all")'
MESSAGE_GONE_REASON = "its message is no longer in the log"


class PullClaimer:
    """Claims deliveries until there is no room left; on whatever connection."""

    def __init__(self, pulling: PostgresClaims, request: ClaimRequest) -> None:
        self._pulling = pulling
        self._request = request
        self._deliveries: list[PulledDelivery] = []
        self._without_message: list[tuple[ClaimedRow, ClaimReply]] = []
        self._size = 0
        self._unread = False

    @property
    def more(self) -> bool:
        """Whether there may be more: the limit was reached, or the log of this database has messages beyond."""
        return self._unread or not self.room

    @property
    def count(self) -> int:
        """How many have been claimed."""
        return len(self._deliveries) + len(self._without_message)

    @property
    def room(self) -> int:
        """How many more there may be."""
        return self._request.limit - self.count if self._size < self._request.bytes else 0

    async def pull(self, found: LogOffer | None = None) -> ClaimReply:
        """One statement: what is ready, and then what a part of the log comes to."""
        request = msgspec.structs.replace(self._request, limit=self.room, bytes=self._request.bytes - self._size)
        scanned = None if found is None else found.scanned
        told = await self._pulling.pull(request, scanned=scanned)
        if told is None:
            known = await self._pulling.addresses()
            raise unknown_subscription(self._request.group, self._request.name, known, otherwise=CREATE_HINT)
        reply = _pullable_reply(told, self._request)
        self._size += reply.size
        self._unread = reply.unread
        self._without_message += [(taken, reply) for taken in reply.ready]
        if found is not None and reply.converted:
            replayed = frozenset(reply.replayed or ())
            self._deliveries += [
                _pulled_delivery(found.messages[position], reply, 1, position in replayed)
                for position in reply.converted
            ]
        return reply

    async def deliveries(self, log: TransactionLog, connection: object | None = None) -> list[PulledDelivery]:
        """Return all of them, by position, with their messages, which a `connection` of the caller's may read.

        One whose message is no longer in the log is parked.
        """
        if self._without_message:
            positions = [taken.position for taken, _ in self._without_message]
            messages = {
                message.position: message for message in await log.messages_at(positions, connection=connection)
            }
            await self._park_lost(messages)
            self._deliveries += [
                _pulled_delivery(messages[taken.position], reply, taken.attempt, taken.replay)
                for taken, reply in self._without_message
                if taken.position in messages
            ]
            self._without_message.clear()
        return sorted(self._deliveries, key=_delivery_position)

    async def _park_lost(self, messages: Mapping[int, Message[Any]]) -> None:
        lost = [
            ClaimSettlement(Claim(reply.id, taken.position, reply.claim), "park", MESSAGE_GONE_REASON)
            for taken, reply in self._without_message
            if taken.position not in messages
        ]
        if lost:
            await self._pulling.settle(lost)


def _pullable_reply(told: ClaimReply | NotPulled, request: ClaimRequest) -> ClaimReply:
    address = f"{request.group}/{request.name}"
    match told:
        case NotPulled(in_code=True):
            raise MilepostError(
                f"{address} has handlers in a program, and nothing of it can be pulled: create another "
                'subscription, with tracking="all"'
            )
        case NotPulled():
            raise MilepostError(
                f'{address} is for consumers: use mp.consumer("{request.name}"), or create another subscription, '
                'with tracking="all"'
            )
    return told


def _pulled_delivery(message: Message[Any], reply: ClaimReply, attempt: int, replay: bool) -> PulledDelivery:
    claim = Claim(reply.id, message.position, reply.claim)
    return PulledDelivery(message=message, attempt=attempt, replay=replay, expires=reply.expires, claim=claim)


def _delivery_position(delivery: PulledDelivery) -> int:
    return delivery.claim.position


MAX_PARTS_PER_PULL = 8
"""How many parts of the log one look goes through."""
MAX_LOST_OFFERS = 8
"""How often somebody else may be first with a part of the log before it is left to them."""
PULL_POLL_SECONDS = 5.0
"""Seconds until the next look, if nothing wakes whoever waits."""
MIN_PULL_PAUSE_SECONDS = 0.1
"""Seconds between two looks at what others have just now."""
OFFER_LOCK_WAIT_SECONDS = 0.1
"""Seconds to wait for others of this process who offer a part of the log."""
LOST_OFFER_PAUSE_SECONDS = (0.002, 0.02)
"""Shortest and longest pause of who came too late for a part of the log, in seconds."""


class PullRound:
    """Claims what is there, in transactions of our own."""

    def __init__(self, pulling: PostgresClaims, scanning: PullScanner, request: ClaimRequest) -> None:
        self._pulling = pulling
        self._scanner = scanning
        self.claims = PullClaimer(pulling, request)
        self.asked = -inf
        """When the last question was asked, by the monotonic clock: what it says may be as old."""
        self.more = True
        """Whether there may be more right now."""
        self.expired: list[ExpiredClaim] = []
        """What others had, and did not settle in time."""
        self.pause = 0.0
        """If nothing was found: seconds after which it makes sense to look again, unless something happens."""

    async def run(self) -> ClaimReply:
        """Looks; how the subscription stands."""
        reply = await self._pull_likely()
        looks = MAX_PARTS_PER_PULL if reply is None else MAX_PARTS_PER_PULL - 1
        if reply is None:
            reply = await self._pull(None)
        try:
            return await self._go_on(reply, looks)
        except Unavailable:
            if not self.claims.count:
                raise
            # What is claimed is not to wait until its claim expires.
            return reply

    async def _go_on(self, reply: ClaimReply, looks: int) -> ClaimReply:
        """Looks further, until there is no room or nothing more."""
        if reply.is_overdue:
            self.expired = await self._pulling.expire(reply.id)
            if self.expired and self.claims.room:
                reply = await self._pull(None)
        losses = 0
        for _ in range(looks):
            if not self.claims.room or losses == MAX_LOST_OFFERS:
                break
            found = None if reply.rests else await self._scanner.next(reply, self.claims.room)
            if found is None:
                self.more = False
                self.pause = _pause_after(reply)
                break
            reply = await self._pull(found)
            if reply.outcome in ("lost", "stale"):
                losses += 1
                self.pause = random.uniform(*LOST_OFFER_PAUSE_SECONDS)  # noqa: S311 - it spreads those who come too late
            elif reply.outcome != "converted":
                self.pause = _pause_after(reply)
                break
        return reply

    async def _pull_likely(self) -> ClaimReply | None:
        """Offers what probably comes next, one after the other in this process: only one can be first with it."""
        offering = self._scanner.offering
        try:
            async with asyncio.timeout(OFFER_LOCK_WAIT_SECONDS):
                await offering.acquire()
        except TimeoutError:
            return None
        try:
            likely = await self._scanner.likely(self.claims.room)
            return None if likely is None else await self._pull(likely)
        finally:
            offering.release()

    async def _pull(self, found: LogOffer | None) -> ClaimReply:
        self.asked = monotonic()
        try:
            reply = await self.claims.pull(found)
        except LaneLocked:
            reply = await self.claims.pull()
        self._scanner.learn(reply)
        return reply


def _pause_after(reply: ClaimReply) -> float:
    """Seconds until something is due or expires, as far as that is known."""
    return (
        PULL_POLL_SECONDS
        if reply.wait is None
        else min(max(reply.wait, MIN_PULL_PAUSE_SECONDS), PULL_POLL_SECONDS)
    )
