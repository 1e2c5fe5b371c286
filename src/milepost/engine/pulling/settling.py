"""How what was pulled ends: many deliveries at once, each if its claim still holds."""

import traceback
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec
import psycopg

from milepost.engine.prospect import reason_of
from milepost.engine.pulling.pulled import PulledDelivery
from milepost.errors import TooLarge, Unavailable
from milepost.log.connections import Executor
from milepost.progress.pulling import Claim, Outcome, PostgresPulling, Settlement

MOST = 10_000
"""How many deliveries one call settles at most."""
ATTEMPTS = 5
"""How often it is tried when somebody who moves the subscription and this wait for each other's rows."""

Given: TypeAlias = PulledDelivery | str
"""A delivery, or its token."""
Reason: TypeAlias = str | BaseException
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

    def add(self, outcome: Outcome, several: Several, reason: Reason) -> None:
        """These are to end like this. A text that is no token will be refused."""
        for given, why in _each(several, reason):
            claim = given.claim if isinstance(given, PulledDelivery) else _claim(outcome, given)
            self._given.append((given, claim))
            if claim is not None:
                self._want(_settlement(claim, outcome, why))

    def _want(self, settlement: Settlement) -> None:
        before = self._wanted.setdefault(settlement.claim, settlement)
        if before.outcome != settlement.outcome:
            position = settlement.claim.position
            raise ValueError(
                f"the delivery of position {position} is in {before.outcome} and {settlement.outcome}"
            )
        if len(self._wanted) > MOST:
            raise TooLarge("settle", f"more than {MOST:,} deliveries at once")

    async def run(self, executor: Executor, *, own: bool, after: float | None, seconds: float | None) -> Settled:
        """Settles them in one transaction: our own, or the caller's."""
        settlements = list(self._wanted.values())
        held: set[int] = set()
        for attempt in range(1, ATTEMPTS + 1):
            if not settlements:
                break
            try:
                held = await self._pulling.settle(executor, settlements, after=after, seconds=seconds)
                break
            except Unavailable as error:
                if not own or attempt == ATTEMPTS or not _is_deadlock(error):
                    raise
        return self._settled({settlements[place].claim for place in held})

    def _settled(self, held: set[Claim]) -> Settled:
        return Settled(
            tuple(given for given, claim in self._given if claim in held),
            tuple(given for given, claim in self._given if claim not in held),
        )


def _each(several: Several, reason: Reason) -> Iterator[tuple[Any, Reason]]:
    if isinstance(several, str | PulledDelivery):
        yield several, reason
    elif isinstance(several, Mapping):
        yield from several.items()
    else:
        for given in several:
            yield given, reason


def _claim(outcome: Outcome, given: object) -> Claim | None:
    if not isinstance(given, str):
        raise TypeError(f"{outcome}: a delivery or its token is wanted, not {given!r}")
    return Claim.of(given)


def _settlement(claim: Claim, outcome: Outcome, reason: Reason) -> Settlement:
    if isinstance(reason, BaseException):
        return Settlement(claim, outcome, reason_of(reason), "".join(traceback.format_exception(reason)))
    return Settlement(claim, outcome, reason)


def _is_deadlock(error: Unavailable) -> bool:
    return isinstance(error.__cause__, psycopg.errors.DeadlockDetected)
