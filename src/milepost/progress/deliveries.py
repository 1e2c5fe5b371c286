"""Messages that need attention of their own, for a person: to look at, to try again, to pass over."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from milepost.dispatch import State
from milepost.log.database import Database
from milepost.log.statements import Statements
from milepost.progress.deadlocks import despite_deadlocks

SPAN = 10_000
"""How many rows one statement looks through for those that are meant."""
LAST = 2**63 - 1
"""Above every position."""

_REFUSALS = {
    None: "it has no delivery: it was handled, is not reached yet, or is not for this subscription",
    State.RUNNING: "it is running: wait for how that ends",
    State.WAITING: "it waits behind another of its key: decide about that one",
    State.UNROUTED: "no consumer takes it: it goes out as soon as one does",
    State.SKIPPED: "it was skipped before",
    State.DONE: "it is done",
    State.PARKED: "it is parked by now: decide again if that is still wanted",
    State.RETRYING: "it is retrying by now: decide again if that is still wanted",
}


class StoredDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery as it is stored."""

    position: int
    state: State
    key: str | None
    """What is kept in order with it; None: nothing is."""
    attempts: int
    """How often it was tried since a person last retried it."""
    total: int
    """How often it was tried at all."""
    size: int
    """Of its message, in bytes."""
    since: datetime
    """When it came into its state."""
    due: datetime | None
    """When it is tried next, if that is known."""
    reason: str
    """Why the last attempt failed, in one line."""
    error: str
    """The error of the last attempt with its traceback; at most 8 KiB of it are kept."""
    consumer: str | None
    """Who had it at the last attempt: the machine, the process and a name of its own; None: no consumer."""
    waiting_behind: int | None
    """If it is `waiting`: the position of the message that its key waits for. Else how many wait behind it."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which deliveries of a subscription are meant; all that is said has to hold."""

    states: frozenset[State] = frozenset(State)
    key: str | None = None
    reason: str | None = None
    """A part of the reason, in upper or lower case."""
    after: int = 0
    up_to: int = LAST
    """The last position."""


@dataclass(frozen=True, kw_only=True)
class Named:
    """Deliveries that are meant by their positions, as far as each is in one of these states."""

    positions: Sequence[int]
    states: frozenset[State]


class SeenDelivery(NamedTuple):
    """A delivery to decide about, and what it said when it was chosen: the decision holds for that."""

    position: int
    state: State | None = None
    """None: it was named by its position, and nobody looked."""
    revision: int | None = None


class Decision(Enum):
    """What a person may decide about a delivery."""

    RETRY = (State.RETRYING, frozenset({State.PARKED, State.RETRYING}))
    """It is tried now, and counted anew."""
    SKIP = (State.SKIPPED, frozenset({State.PARKED, State.RETRYING, State.WAITING, State.UNROUTED}))
    """It is passed over for good."""

    def __init__(self, becomes: State, applies_to: frozenset[State]) -> None:
        self.becomes = becomes
        self.applies_to = applies_to


class Decided(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of a decision."""

    moved: int
    """How many deliveries it holds for."""
    refused: dict[int, str]
    """The positions it does not hold for, and why, in words."""
    next: int | None = None
    """With `all` and `up_to`, where the limit was reached: what to give as `after` to go on after these."""


class PostgresDeliveries:
    """The deliveries of one subscription, in a schema of a database."""

    def __init__(self, database: Database, schema: str, subscription: int) -> None:
        self._database = database.within(None)
        self._statements = Statements(schema, "milepost.progress")
        self._subscription = subscription

    async def chosen(self, choice: Choice) -> AsyncGenerator[list[SeenDelivery], None]:
        """Those that are meant, in order of position, in lists of at most `SPAN`."""
        after: int | None = choice.after
        while after is not None:
            [[positions, states, revisions, after]] = await self._execute(
                "choose_deliveries",
                states=sorted(choice.states),
                key=choice.key,
                reason=choice.reason,
                after=after,
                up_to=choice.up_to,
                span=SPAN,
            )
            if positions:
                found = zip(positions, states, revisions, strict=True)
                yield [SeenDelivery(position, State(state), revision) for position, state, revision in found]

    async def at(self, positions: Sequence[int]) -> list[StoredDelivery]:
        """Those at these positions, in order, as far as there are any."""
        rows = await self._execute("deliveries_at", positions=list(positions))
        fields = StoredDelivery.__struct_fields__
        return [msgspec.convert(dict(zip(fields, row, strict=True)), StoredDelivery) for row in rows]

    async def decide(
        self, decision: Decision, seen: Sequence[SeenDelivery], states: frozenset[State] | None = None
    ) -> Decided:
        """Decide in one transaction. Rows that an owner is just writing are waited for.

        Of two people who decide at once only one moves a delivery: the other has it refused.
        With `states` only those in one of them are moved.
        """
        rows = await despite_deadlocks(
            lambda: self._execute(
                "decide",
                positions=[each.position for each in seen],
                seen=[each.state for each in seen],
                revisions=[each.revision for each in seen],
                state=decision.becomes,
                states=sorted(states or decision.applies_to),
                anew=decision is Decision.RETRY,
            )
        )
        refused = {position: _REFUSALS[state and State(state)] for position, state, moved in rows if not moved}
        return Decided(moved=len(rows) - len(refused), refused=refused)

    async def _execute(self, statement: str, **parameters: Any) -> Sequence[Any]:
        named = {"subscription": self._subscription, **parameters}
        return await self._database.execute(self._statements.get(statement), named)
