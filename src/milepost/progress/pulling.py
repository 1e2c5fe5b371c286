"""Rows that whoever comes claims and settles, in PostgreSQL: each call is a statement, on whatever connection."""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgspec

from milepost.dispatch import State
from milepost.log.connections import Executor
from milepost.log.horizon import COVER
from milepost.log.since import Since
from milepost.log.statements import Statements, as_array
from milepost.log.wakeups import MARK
from milepost.progress.memories import Memory
from milepost.progress.storable import storable_text

EXPIRE = 1000
"""How many claims that have expired one statement looks after."""

Outcome = Literal["ack", "retry", "park", "skip", "extend"]

_TOKEN = re.compile("([1-9][0-9]{0,17})-([1-9][0-9]{0,17})-([0-9a-f]{32})")


class Claim(msgspec.Struct, frozen=True):
    """The right to settle a delivery, for as long as nobody else has it."""

    subscription: int
    position: int
    id: str
    """What nobody can guess: 32 hexadecimal digits."""

    @property
    def batch(self) -> tuple[int, str]:
        """What all that was claimed together has in common."""
        return self.subscription, self.id

    @property
    def token(self) -> str:
        """The claim as one text."""
        return f"{self.subscription}-{self.position}-{self.id}"

    @classmethod
    def of(cls, token: str) -> "Claim | None":
        """What a text says; None: it is no token."""
        found = _TOKEN.fullmatch(token)
        return None if found is None else cls(int(found[1]), int(found[2]), found[3])


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants to have."""

    group: str
    name: str
    limit: int
    """At most so many deliveries."""
    bytes: int
    """At most so many bytes of messages, but one message at least."""
    seconds: float | None
    """How long the claims hold; None: as the subscription says."""
    consumer: str
    """Who that is, for whoever looks at deliveries."""


class Scanned(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the log that is to become rows, and by what it was read."""

    number: int
    """Of the definition."""
    epoch: int
    """Of the cursor: it is another after a person has moved it."""
    above: int
    """Where it begins: the cursor has to be there, or further."""
    position: int
    """Where it ends."""
    life: UUID | None
    """Of the server, if the log is in this database."""
    positions: Sequence[int]
    sizes: Sequence[int]
    keys: Sequence[str] | None
    fresh: Sequence[int] = ()
    """The positions that had not been handled before, though a replay may bring them."""


class Taken(NamedTuple):
    """A row that was claimed."""

    position: int
    attempt: int
    """From 1."""
    replay: bool


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a pull, and how the subscription stands."""

    id: int
    number: int
    settings: msgspec.Raw
    since: Since | None
    status: str
    """What people want of it: `running` or `paused`."""
    stalled: str | None
    """Why one delivery at a time is given, if that is so."""
    rests: bool
    """Whether it is paused, or somebody is changing it: it gives nothing."""
    epoch: int
    """Of the cursor: it is another after a person has moved it."""
    position: int
    """Of the cursor."""
    ahead: list[int]
    """What is done beyond it, as ranges: first, last, first, last, …"""
    memories: list[Memory] | None
    """What had been handled before, while a replay is under way."""
    claim: str
    """Of all that was claimed: what nobody can guess."""
    expires: datetime
    ready: list[Taken]
    """Rows that were there."""
    outcome: Literal["converted", "lost", "stale", "full"] | None
    """What came of the part of the log: `lost`: somebody else was first; `stale`: it has to be read again; `full`:
    enough rows wait already; None: there was no room."""
    converted: list[int] | None
    """The positions of rows that came of it and were claimed."""
    replayed: list[int] | None
    """Those of them that had been handled before."""
    size: int
    """Bytes of the messages of all that was claimed."""
    is_overdue: bool
    """Whether claims have expired that nobody has looked after."""
    wait: float | None
    """Seconds until a row was due or a claim expired, before this, if any."""
    unread: bool
    """In a caller's transaction: whether the log of this database has messages after the cursor."""


class NotPulled(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A subscription that is not for pulling."""

    in_code: bool
    tracking: str | None


class Fate(msgspec.Struct, frozen=True):
    """What became of a delivery."""

    state: State
    attempts: int
    due: float | None
    reason: str


class Expired(NamedTuple):
    """A delivery whose claim has expired: an attempt that failed."""

    position: int
    seconds: float
    """For how long it was held."""
    fate: Fate


class Settlement(msgspec.Struct, frozen=True):
    """How one delivery is to end."""

    claim: Claim
    outcome: Outcome
    reason: str = ""
    error: str = ""


class Outcomes(NamedTuple):
    """What came of settling."""

    held: set[int]
    """The places of the claims that held."""
    again: bool = False
    """Whether that was so before: the same was asked already."""


_replies = msgspec.json.Decoder(Reply)
_refusals = msgspec.json.Decoder(NotPulled)


class PostgresPulling:
    """The statements, for one schema."""

    def __init__(self, schema: str) -> None:
        self._statements = Statements(schema, "milepost.progress")
        self._log_statements = Statements(schema)

    async def pull(
        self, executor: Executor, request: Request, *, own: bool, scanned: Scanned | None = None
    ) -> Reply | NotPulled | None:
        """Claims what is ready; with a part of the log and some room, that becomes rows. None: it is unknown.

        `own` says that the transaction is ours alone, and short.
        """
        parameters = {
            "group": request.group,
            "name": request.name,
            "limit": request.limit,
            "bytes": request.bytes,
            "seconds": request.seconds,
            "consumer": request.consumer,
            "own": own,
            **_page(scanned),
        }
        rows = await executor.execute(self._statements.get("pull"), parameters)
        told: str | None = rows[0][0]
        if told is None:
            return None
        return _refusals.decode(told) if told.startswith('{"in_code"') else _replies.decode(told)

    async def addresses(self, executor: Executor) -> list[tuple[str, str]]:
        """Every subscription, by group and name."""
        rows = await executor.execute(self._statements.get("addresses"), {})
        return [(row[0], row[1]) for row in rows]

    async def expire(self, executor: Executor, subscription: int) -> list[Expired]:
        """Some of the claims that have expired count as attempts that failed; which."""
        parameters = {"subscription": subscription, "limit": EXPIRE}
        rows = await executor.execute(self._statements.get("expire_claims"), parameters)
        return [Expired(row[0], row[1], _fate(*row[2:])) for row in rows]

    async def fates(self, executor: Executor, subscription: int, positions: Sequence[int]) -> dict[int, Fate]:
        """What became of deliveries, by position; of those that are done, nothing is left."""
        parameters = {"subscription": subscription, "positions": list(positions)}
        rows = await executor.execute(self._statements.get("fates"), parameters)
        return {row[0]: _fate(*row[1:]) for row in rows}

    async def settle(
        self,
        executor: Executor,
        settlements: Sequence[Settlement],
        *,
        after: float | None = None,
        seconds: float | None = None,
        id: UUID | None = None,
    ) -> Outcomes | None:
        """Ends deliveries whose claims hold. What has an `id` is done once; None: another request had that id."""
        says = any(settlement.reason or settlement.error for settlement in settlements)
        claims = [settlement.claim for settlement in settlements]
        parameters = {
            "subscriptions": as_array([claim.subscription for claim in claims]),
            "positions": as_array([claim.position for claim in claims]),
            "claims": as_array([claim.id for claim in claims]),
            "outcomes": as_array([settlement.outcome for settlement in settlements]),
            "reasons": _texts(settlement.reason for settlement in settlements) if says else "[]",
            "errors": _texts(settlement.error for settlement in settlements) if says else "[]",
            "after": after,
            "seconds": seconds,
        }
        if id is None:
            rows = await executor.execute(self._statements.get("settle"), parameters)
            return Outcomes({row[0] - 1 for row in rows})
        rows = await executor.execute(self._statements.get("settle_once"), {"id": str(id), **parameters})
        if any(again is None for _, again in rows):
            return None
        return Outcomes({place - 1 for place, _ in rows}, again=any(again for _, again in rows))

    async def mark(self, executor: Executor) -> None:
        """Makes sure that whoever has something for pullers from now on wakes those that sleep."""
        statement = self._log_statements.get("mark_sleep")
        await executor.execute(statement, {"mark": MARK, "cover": COVER})


def _fate(state: str, attempts: int, due: float | None, reason: str) -> Fate:
    return Fate(State(state), attempts, due, reason)


def _page(scanned: Scanned | None) -> dict[str, Any]:
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
        "positions": as_array(scanned.positions),
        "sizes": as_array(scanned.sizes),
        "keys": msgspec.json.encode(scanned.keys or ()).decode(),
    }


def _texts(texts: Iterable[str]) -> str:
    return msgspec.json.encode([storable_text(text) for text in texts]).decode()
