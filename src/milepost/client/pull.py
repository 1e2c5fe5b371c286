"""Pull deliveries, and settle them by token, over HTTP."""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from time import monotonic
from typing import Any, Final
from uuid import UUID

import msgspec

from milepost.client.messages import ReceivedMessage
from milepost.client.nodes import api_path
from milepost.client.transport import ApiRequest, HttpTransport, encode_body
from milepost.engine.checks import checked, optional, seconds, whole
from milepost.engine.pull.claims import PulledDeliveries, PulledDelivery
from milepost.engine.pull.puller import checked_pull_wait
from milepost.engine.pull.settle import (
    MAX_SETTLED_DELIVERIES,
    DeliveriesOrTokens,
    DeliveryOrToken,
    PullSettleResult,
    ReportedFailure,
    SettleReason,
    checked_request_id,
    each_with_reason,
)
from milepost.errors import MilepostError, TooLarge, Unavailable
from milepost.log.codec import Codec
from milepost.log.query import PAGE_BYTES
from milepost.progress.deliveries import Claim
from milepost.wire.deliveries import SettledDeliveries

DELIVERIES_PER_PULL: Final = 1000
"""Deliveries of one answer at the most."""
PULL_WAIT_SECONDS: Final = 30.0
"""Seconds that one request waits at the most."""
ANSWER_REMEMBERED_SECONDS: Final = 240.0
"""Seconds for which a server surely knows what it has answered."""


class ReceivedClaimedDelivery(msgspec.Struct, frozen=True):
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


class ReceivedClaimedDeliveries(msgspec.Struct, frozen=True):
    """The deliveries of one answer."""

    deliveries: list[ReceivedClaimedDelivery]
    more: bool


class HttpPuller:
    """Pulls and settles for a client."""

    def __init__(self, requests: HttpTransport, codec: Codec) -> None:
        self._requests = requests
        self._codec = codec

    async def pull(
        self, group: str, name: str, *, limit: int, wait: float, timeout: float | None
    ) -> PulledDeliveries:
        """Claims what is there, or waits for it: as many requests as that takes."""
        longest = checked("wait", checked_pull_wait, wait)
        checked("limit", whole(1, MAX_SETTLED_DELIVERIES), limit)
        checked("timeout", optional(seconds(more=True)), timeout)
        where = api_path("subscriptions", group, name, "pull")
        end = asyncio.get_running_loop().time() + longest
        found: list[PulledDelivery] = []
        while True:
            left = 0.0 if found else max(0.0, end - asyncio.get_running_loop().time())
            try:
                page = await self._page(
                    where, min(DELIVERIES_PER_PULL, limit - len(found)), min(PULL_WAIT_SECONDS, left), timeout
                )
            except Unavailable:
                if not found:
                    raise
                return PulledDeliveries(found, more=True)
            found += [received.delivery(self._codec) for received in page.deliveries]
            if not (_wants_more(found, limit) and page.more if found else left > PULL_WAIT_SECONDS):
                return PulledDeliveries(found, more=page.more)

    async def _page(self, where: str, limit: int, wait: float, timeout: float | None) -> ReceivedClaimedDeliveries:
        query = [("limit", str(limit)), ("wait", str(wait))]
        query += [] if timeout is None else [("timeout", str(timeout))]
        request = ApiRequest(method="POST", path=where, query=query, seconds=wait)
        return (await self._requests.ask(request)).decode_as(ReceivedClaimedDeliveries)

    async def settle(
        self,
        outcomes: Mapping[str, DeliveriesOrTokens],
        *,
        reason: SettleReason,
        after: float | None,
        timeout: float | None,
        id: UUID,
    ) -> PullSettleResult:
        """Ends deliveries whose claims hold, in one transaction: by its id once, however often it is sent.

        Whoever asks for longer than the server remembers gets no answer rather than a wrong one.
        """
        checked("after", optional(seconds()), after)
        checked("timeout", optional(seconds(more=True)), timeout)
        checked("id", checked_request_id, id)
        given, body = _settle_body(outcomes, reason)
        if not given:
            return PullSettleResult((), ())
        words = {"after": after, "timeout": timeout, "id": str(id)}
        body |= {name: value for name, value in words.items() if value is not None}
        begun = monotonic()
        answer = await self._requests.ask(
            ApiRequest(method="POST", path=api_path("settle"), body=encode_body(body))
        )
        moved = set(answer.decode_as(SettledDeliveries).moved)
        refused = tuple(one for one in given if _token_of(one) not in moved)
        if refused and answer.unsure and monotonic() - begun > ANSWER_REMEMBERED_SECONDS:
            raise Unavailable(
                f"an answer was lost, and nobody knows whether {len(refused):,} of these deliveries were settled"
            )
        return PullSettleResult(tuple(one for one in given if _token_of(one) in moved), refused)


def _settle_body(
    outcomes: Mapping[str, DeliveriesOrTokens], reason: SettleReason
) -> tuple[list[DeliveryOrToken], dict[str, Any]]:
    """What was given, in order, and the same as it is sent."""
    given: list[DeliveryOrToken] = []
    body: dict[str, Any] = {}
    chosen: dict[str, str] = {}
    for outcome, several in outcomes.items():
        tokens: dict[str, Any] = {}
        for one, why in each_with_reason(several, reason):
            if not isinstance(one, str | PulledDelivery):
                raise TypeError(f"{outcome}: a delivery or its token is wanted, not {one!r}")
            token = _token_of(one)
            if chosen.setdefault(token, outcome) != outcome:
                raise ValueError(f"the delivery of token {token} is in {chosen[token]} and {outcome}")
            given.append(one)
            if len(given) > MAX_SETTLED_DELIVERIES:
                raise TooLarge("settle", f"more than {MAX_SETTLED_DELIVERIES:,} deliveries at once")
            tokens[token] = ReportedFailure.of(why) if isinstance(why, BaseException) else why
        if tokens:
            body[outcome] = tokens
    return given, body


def _wants_more(found: list[PulledDelivery], limit: int) -> bool:
    return len(found) < limit and sum(delivery.message.size for delivery in found) < PAGE_BYTES


def _token_of(given: DeliveryOrToken) -> str:
    return given if isinstance(given, str) else given.token
