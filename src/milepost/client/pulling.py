"""Pulling and settling by token over HTTP."""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from time import monotonic
from typing import Any, Final
from uuid import UUID

import msgspec

from milepost.client.messages import ReceivedMessage
from milepost.client.node import path
from milepost.client.requests import Request, Requests, encoded
from milepost.engine.pulling.pulled import Pulled, PulledDelivery
from milepost.engine.pulling.puller import checked_wait
from milepost.engine.pulling.settling import MOST, Failure, Given, Reason, Settled, Several, a_uuid, each
from milepost.engine.values import checked, optional, seconds, whole
from milepost.errors import MilepostError, TooLarge, Unavailable
from milepost.log.codec import Codec
from milepost.log.reader import PAGE_BYTES
from milepost.progress.pulling import Claim

PAGE: Final = 1000
"""Deliveries of one answer at the most."""
WAIT: Final = 30.0
"""Seconds that one request waits at the most."""
REMEMBERED: Final = 240.0
"""Seconds for which a server surely knows what it has answered."""


class ReceivedDelivery(msgspec.Struct, frozen=True):
    """A delivery as a server tells it."""

    token: str
    attempt: int
    replay: bool
    expires: datetime
    message: ReceivedMessage

    def delivery(self, codec: Codec) -> PulledDelivery:
        """The same as the library pulls it."""
        claim = Claim.of(self.token)
        if claim is None:
            raise MilepostError("the server gave a token that is none")
        return PulledDelivery(
            message=self.message.message(codec),
            attempt=self.attempt,
            replay=self.replay,
            expires=self.expires,
            claim=claim,
        )


class ReceivedDeliveries(msgspec.Struct, frozen=True):
    """The deliveries of one answer."""

    deliveries: list[ReceivedDelivery]
    more: bool


class SettledTokens(msgspec.Struct, frozen=True):
    """What came of settling."""

    moved: list[str]
    refused: list[str]


class Pulling:
    """Pulls and settles for a client."""

    def __init__(self, requests: Requests, codec: Codec) -> None:
        self._requests = requests
        self._codec = codec

    async def pull(self, group: str, name: str, *, limit: int, wait: float, timeout: float | None) -> Pulled:
        """Claims what is there, or waits for it: as many requests as that takes."""
        longest = checked("wait", checked_wait, wait)
        checked("limit", whole(1, MOST), limit)
        checked("timeout", optional(seconds(more=True)), timeout)
        where = path("subscriptions", group, name, "pull")
        end = asyncio.get_running_loop().time() + longest
        found: list[PulledDelivery] = []
        while True:
            left = 0.0 if found else max(0.0, end - asyncio.get_running_loop().time())
            try:
                page = await self._page(where, min(PAGE, limit - len(found)), min(WAIT, left), timeout)
            except Unavailable:
                if not found:
                    raise
                return Pulled(found, more=True)
            found += [received.delivery(self._codec) for received in page.deliveries]
            if not (_wants_more(found, limit) and page.more if found else left > WAIT):
                return Pulled(found, more=page.more)

    async def _page(self, where: str, limit: int, wait: float, timeout: float | None) -> ReceivedDeliveries:
        query = [("limit", str(limit)), ("wait", str(wait))]
        query += [] if timeout is None else [("timeout", str(timeout))]
        request = Request(method="POST", path=where, query=query, seconds=wait)
        return (await self._requests.ask(request)).as_(ReceivedDeliveries)

    async def settle(
        self,
        outcomes: Mapping[str, Several],
        *,
        reason: Reason,
        after: float | None,
        timeout: float | None,
        id: UUID,
    ) -> Settled:
        """Ends deliveries whose claims hold, in one transaction: by its id once, however often it is sent.

        Whoever asks for longer than the server remembers gets no answer rather than a wrong one.
        """
        checked("after", optional(seconds()), after)
        checked("timeout", optional(seconds(more=True)), timeout)
        checked("id", a_uuid, id)
        given, body = _sent(outcomes, reason)
        if not given:
            return Settled((), ())
        words = {"after": after, "timeout": timeout, "id": str(id)}
        body |= {name: value for name, value in words.items() if value is not None}
        begun = monotonic()
        answer = await self._requests.ask(Request(method="POST", path=path("settle"), body=encoded(body)))
        moved = set(answer.as_(SettledTokens).moved)
        refused = tuple(one for one in given if _token(one) not in moved)
        if refused and answer.unsure and monotonic() - begun > REMEMBERED:
            raise Unavailable(
                f"an answer was lost, and nobody knows whether {len(refused):,} of these deliveries were settled"
            )
        return Settled(tuple(one for one in given if _token(one) in moved), refused)


def _sent(outcomes: Mapping[str, Several], reason: Reason) -> tuple[list[Given], dict[str, Any]]:
    """What was given, in order, and the same as it is sent."""
    given: list[Given] = []
    body: dict[str, Any] = {}
    chosen: dict[str, str] = {}
    for outcome, several in outcomes.items():
        tokens: dict[str, Any] = {}
        for one, why in each(several, reason):
            if not isinstance(one, str | PulledDelivery):
                raise TypeError(f"{outcome}: a delivery or its token is wanted, not {one!r}")
            token = _token(one)
            if chosen.setdefault(token, outcome) != outcome:
                raise ValueError(f"the delivery of token {token} is in {chosen[token]} and {outcome}")
            given.append(one)
            if len(given) > MOST:
                raise TooLarge("settle", f"more than {MOST:,} deliveries at once")
            tokens[token] = Failure.of(why) if isinstance(why, BaseException) else why
        if tokens:
            body[outcome] = tokens
    return given, body


def _wants_more(found: list[PulledDelivery], limit: int) -> bool:
    return len(found) < limit and sum(delivery.message.size for delivery in found) < PAGE_BYTES


def _token(given: Given) -> str:
    return given if isinstance(given, str) else given.token
