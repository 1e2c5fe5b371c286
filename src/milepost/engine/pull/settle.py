"""Settle pulled deliveries: many at once, each if its claim still holds."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from milepost.dispatch.retry import one_line
from milepost.engine.pull.claims import PulledDelivery
from milepost.engine.pull.reports import SettledPull
from milepost.engine.tracebacks import reason_of, traceback_of
from milepost.errors import InvalidMessage, TooLarge
from milepost.progress.deliveries import Claim, ClaimOutcome, ClaimSettlement
from milepost.progress.postgres.deliveries import PostgresClaims

MAX_SETTLED_DELIVERIES = 10_000
"""How many deliveries one call settles at most."""


class ReportedFailure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An exception that was raised elsewhere."""

    reason: str
    """In one line."""
    error: str = ""
    """With its traceback."""

    @classmethod
    def of(cls, error: BaseException) -> "ReportedFailure":
        """One that was raised here."""
        return cls(reason_of(error), traceback_of(error))


DeliveryOrToken: TypeAlias = PulledDelivery | str
"""A delivery, or its token."""
SettleReason: TypeAlias = str | BaseException | ReportedFailure
DeliveriesOrTokens: TypeAlias = (
    DeliveryOrToken | Iterable[DeliveryOrToken] | Mapping[DeliveryOrToken, SettleReason]
)
"""One or several, or each with its reason."""


class PullSettleResult(msgspec.Struct, frozen=True):
    """What came of settling deliveries."""

    moved: tuple[DeliveryOrToken, ...]
    """Those that were settled, as they were given."""
    refused: tuple[DeliveryOrToken, ...]
    """Those that are no longer this claim's: it has expired and others may have it, or it was settled before."""


class PullSettleRequest:
    """What a caller wants to have settled."""

    def __init__(self, pulling: PostgresClaims) -> None:
        self._pulling = pulling
        self._given: list[tuple[DeliveryOrToken, Claim | None]] = []
        self._wanted: dict[Claim, ClaimSettlement] = {}
        self._raised: dict[Claim, BaseException] = {}
        self.news: list[ClaimSettlement] = []
        """Those that were settled by this, and not before."""

    def add(self, outcome: ClaimOutcome, several: DeliveriesOrTokens, reason: SettleReason) -> None:
        """These are to end like this. A text that is no token will be refused."""
        wanted = self._wanted
        for given, why in each_with_reason(several, reason):
            claim = given.claim if isinstance(given, PulledDelivery) else _claim_of(outcome, given)
            self._given.append((given, claim))
            if len(self._given) > MAX_SETTLED_DELIVERIES:
                raise TooLarge("settle", f"more than {MAX_SETTLED_DELIVERIES:,} deliveries at once")
            if claim is None:
                continue
            before = wanted.setdefault(claim, _settlement_of(claim, outcome, why))
            if before.outcome != outcome:
                raise ValueError(f"the delivery of position {claim.position} is in {before.outcome} and {outcome}")
            if isinstance(why, BaseException):
                self._raised[claim] = why

    async def run(self, *, after: float | None, seconds: float | None, id: UUID | None) -> PullSettleResult:
        """Settles them in one transaction: our own, or the caller's."""
        settlements = list(self._wanted.values())
        if not settlements:
            return self._settled(set())
        outcomes = await self._pulling.settle(settlements, after=after, seconds=seconds, id=id)
        if outcomes is None:
            raise InvalidMessage(
                "id", f"{id} was given for other deliveries before: a new request needs a new one"
            )
        if len(outcomes.held) < len(settlements):
            settlements = [settlements[place] for place in sorted(outcomes.held)]
        self.news = [] if outcomes.again else settlements
        return self._settled({settlement.claim for settlement in settlements})

    def ended(self, seconds: Callable[[Claim], float]) -> list[SettledPull]:
        """What of the news was given as deliveries, with their messages: each with how long it was here."""
        given = {claim: given for given, claim in self._given if isinstance(given, PulledDelivery)}
        return [
            SettledPull(given[claim], news.outcome, news.reason, self._raised.get(claim), seconds(claim))
            for news in self.news
            if (claim := news.claim) in given
        ]

    def _settled(self, held: set[Claim]) -> PullSettleResult:
        moved, refused = list[DeliveryOrToken](), list[DeliveryOrToken]()
        for given, claim in self._given:
            (moved if claim in held else refused).append(given)
        return PullSettleResult(tuple(moved), tuple(refused))


def each_with_reason(several: DeliveriesOrTokens, reason: SettleReason) -> Iterator[tuple[Any, SettleReason]]:
    """What a caller gave, one by one, with the reason of each."""
    if isinstance(several, str | PulledDelivery):
        yield several, reason
    elif isinstance(several, Mapping):
        yield from several.items()
    elif isinstance(several, Iterable):
        for given in several:
            yield given, reason
    else:
        raise TypeError(f"a delivery or its token is wanted, or several, not {several!r}")


def checked_request_id(value: Any) -> UUID:
    """The id of a request; a `ValueError` says what is wanted."""
    if not isinstance(value, UUID):
        raise ValueError("a UUID is wanted")  # noqa: TRY004 - as with every option
    return value


def _claim_of(outcome: ClaimOutcome, given: object) -> Claim | None:
    if not isinstance(given, str):
        raise TypeError(f"{outcome}: a delivery or its token is wanted, not {given!r}")
    return Claim.of(given)


def _settlement_of(claim: Claim, outcome: ClaimOutcome, reason: SettleReason) -> ClaimSettlement:
    if isinstance(reason, str):
        return ClaimSettlement(claim, outcome, one_line(reason))
    failure = ReportedFailure.of(reason) if isinstance(reason, BaseException) else reason
    return ClaimSettlement(claim, outcome, one_line(failure.reason), failure.error)
