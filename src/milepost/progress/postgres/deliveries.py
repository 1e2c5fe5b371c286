"""Deliveries in PostgreSQL: choose and decide about them, claim and settle them; each call is a statement."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
import psycopg

from milepost.dispatch import State
from milepost.errors import Unavailable
from milepost.log.postgres.horizon import SLEEP_COVER_TIME
from milepost.log.postgres.wakeups import SLEEP_MARK_TIME
from milepost.postgres.connections import Executor, executor_in_loop
from milepost.postgres.pool import Database
from milepost.postgres.statements import Statements, array_literal
from milepost.progress.deliveries import (
    ClaimReply,
    ClaimRequest,
    ClaimSettlement,
    Decided,
    Decision,
    DeliveryChoice,
    DeliveryFate,
    ExpiredClaim,
    LaneLocked,
    NotPulled,
    ScannedLog,
    SeenDelivery,
    SettlementResult,
    StoredDelivery,
)
from milepost.progress.postgres.errors import retry_deadlocks
from milepost.progress.rows import storable_text

MAX_EXPIRED_CLAIMS = 1000
"""How many claims that have expired one statement looks after."""


_reply_decoder = msgspec.json.Decoder(ClaimReply)
_refusal_decoder = msgspec.json.Decoder(NotPulled)


class PostgresClaims:
    """Claims and settles deliveries: in a caller's transaction, or in short ones of our own."""

    def __init__(self, statements: "ClaimStatements", executor: Executor, *, own: bool) -> None:
        self._statements = statements.progress
        self._log_statements = statements.log
        self._executor = executor
        self._own = own

    async def pull(
        self, request: ClaimRequest, *, scanned: ScannedLog | None = None
    ) -> ClaimReply | NotPulled | None:
        """Claim what is ready; with a part of the log and some room, that becomes rows. None: it is unknown.

        Raises `LaneLocked` if others have the lane for long, in a transaction of our own.
        """
        parameters = {
            "group": request.group,
            "name": request.name,
            "limit": request.limit,
            "bytes": request.bytes,
            "seconds": request.seconds,
            "consumer": request.consumer,
            "own": self._own,
            **_scan_parameters(scanned),
        }
        try:
            rows = await self._executor.execute(self._statements.get("pull"), parameters)
        except Unavailable as error:
            if isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                raise LaneLocked(str(error)) from error
            raise
        told: str | None = rows[0][0]
        if told is None:
            return None
        return _refusal_decoder.decode(told) if told.startswith('{"in_code"') else _reply_decoder.decode(told)

    async def addresses(self) -> list[tuple[str, str]]:
        """Every subscription, by group and name."""
        rows = await self._executor.execute(self._statements.get("addresses"), {})
        return [(row[0], row[1]) for row in rows]

    async def expire(self, subscription: int) -> list[ExpiredClaim]:
        """Some of the claims that have expired count as attempts that failed; which."""
        parameters = {"subscription": subscription, "limit": MAX_EXPIRED_CLAIMS}
        rows = await self._executor.execute(self._statements.get("expire_claims"), parameters)
        return [ExpiredClaim(row[0], row[1], _delivery_fate(*row[2:])) for row in rows]

    async def fates(self, subscription: int, positions: Sequence[int]) -> dict[int, DeliveryFate]:
        """What became of deliveries, by position; of those that are done, nothing is left."""
        parameters = {"subscription": subscription, "positions": list(positions)}
        rows = await self._executor.execute(self._statements.get("fates"), parameters)
        return {row[0]: _delivery_fate(*row[1:]) for row in rows}

    async def settle(
        self,
        settlements: Sequence[ClaimSettlement],
        *,
        after: float | None = None,
        seconds: float | None = None,
        id: UUID | None = None,
    ) -> SettlementResult | None:
        """End deliveries whose claims hold. What has an `id` is done once; None: another request had that id.

        A transaction of our own that a deadlock has ended runs again.
        """
        settle = partial(self._settle, settlements, after, seconds, id)
        return await (retry_deadlocks(settle) if self._own else settle())

    async def _settle(
        self, settlements: Sequence[ClaimSettlement], after: float | None, seconds: float | None, id: UUID | None
    ) -> SettlementResult | None:
        says = any(settlement.reason or settlement.error for settlement in settlements)
        claims = [settlement.claim for settlement in settlements]
        parameters = {
            "subscriptions": array_literal([claim.subscription for claim in claims]),
            "positions": array_literal([claim.position for claim in claims]),
            "claims": array_literal([claim.id for claim in claims]),
            "outcomes": array_literal([settlement.outcome for settlement in settlements]),
            "reasons": _texts_json(settlement.reason for settlement in settlements) if says else "[]",
            "errors": _texts_json(settlement.error for settlement in settlements) if says else "[]",
            "after": after,
            "seconds": seconds,
        }
        if id is None:
            rows = await self._executor.execute(self._statements.get("settle"), parameters)
            return SettlementResult({row[0] - 1 for row in rows})
        rows = await self._executor.execute(self._statements.get("settle_once"), {"id": str(id), **parameters})
        if any(again is None for _, again in rows):
            return None
        return SettlementResult({place - 1 for place, _ in rows}, again=any(again for _, again in rows))

    async def mark(self) -> None:
        """Makes sure that whoever has something for pullers from now on wakes those that sleep."""
        statement = self._log_statements.get("mark_sleep")
        await self._executor.execute(statement, {"mark": SLEEP_MARK_TIME, "cover": SLEEP_COVER_TIME})


class ClaimStatements:
    """The statements of claims, for one schema."""

    def __init__(self, schema: str) -> None:
        self.progress = Statements(schema, "milepost.progress.postgres")
        self.log = Statements(schema, "milepost.log.postgres")

    def on(self, connection: object) -> PostgresClaims:
        """Return claims that are part of the transaction of a caller's connection."""
        return PostgresClaims(self, executor_in_loop(connection), own=False)

    def within(self, database: Database) -> PostgresClaims:
        """Return claims in transactions of our own."""
        return PostgresClaims(self, database, own=True)


def _delivery_fate(state: str, attempts: int, due: float | None, reason: str) -> DeliveryFate:
    return DeliveryFate(State(state), attempts, due, reason)


def _scan_parameters(scanned: ScannedLog | None) -> dict[str, Any]:
    if scanned is None:
        return {"page": None, "positions": "{}", "sizes": "{}", "keys": "[]"}
    page = {
        "number": scanned.number,
        "epoch": scanned.epoch,
        "above": scanned.above,
        "position": scanned.position,
        "life": scanned.life,
        "size": sum(scanned.sizes),
        "fresh": scanned.fresh,
    }
    return {
        "page": msgspec.json.encode(page).decode(),
        "positions": array_literal(scanned.positions),
        "sizes": array_literal(scanned.sizes),
        "keys": msgspec.json.encode(scanned.keys or ()).decode(),
    }


def _texts_json(texts: Iterable[str]) -> str:
    return msgspec.json.encode([storable_text(text) for text in texts]).decode()


CHOOSE_SPAN_ROWS = 10_000
"""How many rows one statement looks through for those that are meant."""


_REFUSAL_REASONS = {
    None: "it has no delivery: it was handled, is not reached yet, or is not for this subscription",
    State.RUNNING: "it is running: wait for how that ends",
    State.WAITING: "it waits behind another of its key: decide about that one",
    State.UNROUTED: "no consumer takes it: it goes out as soon as one does",
    State.SKIPPED: "it was skipped before",
    State.DONE: "it is done",
    State.PARKED: "it is parked by now: decide again if that is still wanted",
    State.RETRYING: "it is retrying by now: decide again if that is still wanted",
}


class PostgresDeliveries:
    """The deliveries of one subscription, in a schema of a database."""

    def __init__(self, database: Database, schema: str, subscription: int) -> None:
        self._database = database.within(None)
        self._statements = Statements(schema, "milepost.progress.postgres")
        self._subscription = subscription

    async def chosen(self, choice: DeliveryChoice) -> AsyncGenerator[list[SeenDelivery], None]:
        """Those that are meant, in order of position, in lists of at most `CHOOSE_SPAN_ROWS`."""
        after: int | None = choice.after
        while after is not None:
            [[positions, states, revisions, after]] = await self._execute(
                "choose_deliveries",
                states=sorted(choice.states),
                key=choice.key,
                reason=choice.reason,
                after=after,
                up_to=choice.up_to,
                span=CHOOSE_SPAN_ROWS,
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
        rows = await retry_deadlocks(
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
        refused = {
            position: _REFUSAL_REASONS[state and State(state)] for position, state, moved in rows if not moved
        }
        return Decided(moved=len(rows) - len(refused), refused=refused)

    async def _execute(self, statement: str, **parameters: Any) -> Sequence[Any]:
        named = {"subscription": self._subscription, **parameters}
        return await self._database.execute(self._statements.get(statement), named)
