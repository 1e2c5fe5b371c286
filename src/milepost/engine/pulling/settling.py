"""How what was pulled ends: many deliveries at once, each if its claim still holds."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from milepost.dispatch.reasons import one_line
from milepost.engine.pulling.pulled import PulledDelivery
from milepost.engine.pulling.telling import Ended
from milepost.engine.tracebacks import reason_of, traceback_of
from milepost.errors import InvalidMessage, TooLarge
from milepost.log.connections import Executor
from milepost.progress.deadlocks import despite_deadlocks
from milepost.progress.pulling import Claim, Outcome, PostgresPulling, Settlement

MOST = 10_000
"""How many deliveries one call settles at most."""


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An exception that was raised elsewhere."""

    reason: str
    """In one line."""
    error: str = ""
    """With its traceback."""

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """One that was raised here."""
        return cls(reason_of(error), traceback_of(error))


Given: TypeAlias = PulledDelivery | str
"""A delivery, or its token."""
Reason: TypeAlias = str | BaseException | Failure
Several: TypeAlias = Given | Iterable[Given] | Mapping[Given, Reason]
"""One or several, or each with its reason."""


class Settled(msgspec.Struct, frozen=True):
    """What came of settling deliveries."""

    moved: tuple[Given, ...]
    """Those that were settled, as they were given."""
    refused: tuple[Given, ...]
    """Those that are no longer this claim's: it has expired and others may have it, or it was settled before."""


class Settling:
    """What a caller wants to have settled."""

    def __init__(self, pulling: PostgresPulling) -> None:
        self._pulling = pulling
        self._given: list[tuple[Given, Claim | None]] = []
        self._wanted: dict[Claim, Settlement] = {}
        self._raised: dict[Claim, BaseException] = {}
        self.news: list[Settlement] = []
        """Those that were settled by this, and not before."""

    def add(self, outcome: Outcome, several: Several, reason: Reason) -> None:
        """These are to end like this. A text that is no token will be refused."""
        wanted = self._wanted
        for given, why in each(several, reason):
            claim = given.claim if isinstance(given, PulledDelivery) else _claim(outcome, given)
            self._given.append((given, claim))
            if len(self._given) > MOST:
                raise TooLarge("settle", f"more than {MOST:,} deliveries at once")
            if claim is None:
                continue
            before = wanted.setdefault(claim, _settlement(claim, outcome, why))
            if before.outcome != outcome:
                raise ValueError(f"the delivery of position {claim.position} is in {before.outcome} and {outcome}")
            if isinstance(why, BaseException):
                self._raised[claim] = why

    async def run(
        self, executor: Executor, *, own: bool, after: float | None, seconds: float | None, id: UUID | None
    ) -> Settled:
        """Settles them in one transaction: our own, or the caller's."""
        settlements = list(self._wanted.values())
        if not settlements:
            return self._settled(set())
        settle = partial(self._pulling.settle, executor, settlements, after=after, seconds=seconds, id=id)
        outcomes = await (despite_deadlocks(settle) if own else settle())
        if outcomes is None:
            raise InvalidMessage(
                "id", f"{id} was given for other deliveries before: a new request needs a new one"
            )
        if len(outcomes.held) < len(settlements):
            settlements = [settlements[place] for place in sorted(outcomes.held)]
        self.news = [] if outcomes.again else settlements
        return self._settled({settlement.claim for settlement in settlements})

    def ended(self, seconds: Callable[[Claim], float]) -> list[Ended]:
        """What of the news was given as deliveries, with their messages: each with how long it was here."""
        given = {claim: given for given, claim in self._given if isinstance(given, PulledDelivery)}
        return [
            Ended(given[claim], news.outcome, news.reason, self._raised.get(claim), seconds(claim))
            for news in self.news
            if (claim := news.claim) in given
        ]

    def _settled(self, held: set[Claim]) -> Settled:
        moved, refused = list[Given](), list[Given]()
        for given, claim in self._given:
            (moved if claim in held else refused).append(given)
        return Settled(tuple(moved), tuple(refused))


def each(several: Several, reason: Reason) -> Iterator[tuple[Any, Reason]]:
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


def a_uuid(value: Any) -> UUID:
    """The id of a request; a `ValueError` says what is wanted."""
    if not isinstance(value, UUID):
        raise ValueError("a UUID is wanted")  # noqa: TRY004 - as with every option
    return value


def _claim(outcome: Outcome, given: object) -> Claim | None:
    if not isinstance(given, str):
        raise TypeError(f"{outcome}: a delivery or its token is wanted, not {given!r}")
    return Claim.of(given)


def _settlement(claim: Claim, outcome: Outcome, reason: Reason) -> Settlement:
    if isinstance(reason, str):
        return Settlement(claim, outcome, one_line(reason))
    failure = Failure.of(reason) if isinstance(reason, BaseException) else reason
    return Settlement(claim, outcome, one_line(failure.reason), failure.error)
