"""The horizon: the position up to which nothing can appear any more.

Positions come from a sequence, so a later one can commit before an earlier one. A sample makes the horizon
known without a lock and without a guess: read how far the sequence has been drawn; then, in a statement of its
own, which transactions hold the lock of an INSERT on the log. Once all of them have ended, everything drawn
by then is final: an INSERT takes its lock before it draws, and a commit is visible before its locks go.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, LiteralString
from uuid import UUID

import msgspec
import psycopg

from milepost.errors import Unavailable
from milepost.log.connections import Row
from milepost.log.database import Connection, Database, OwnConnection, fetch
from milepost.log.statements import Statements

logger = logging.getLogger("milepost.log.horizon")

STORE_EVERY = 5.0
"""Seconds between two writes of the horizon, where a new process starts from."""
NAME_AFTER = 1.0
"""Seconds after which whoever holds the horizon is named in the log."""
MAX_SAMPLES = 128
"""Samples kept while a transaction holds the horizon; further ones replace the newest."""
LOOK_PAUSES = (0.001, 0.002, 0.004, 0.008)
"""Seconds between the looks of who does not wait."""
RUN_SPAN = 10_000
"""How many positions one statement checks for a run."""
COVER = timedelta(seconds=5)
"""How long a sleep may be that a mark in the database has to cover."""


@dataclass(frozen=True, slots=True)
class Sample:
    """How far the sequence had been drawn, and who had not ended then."""

    drawn: int
    open: frozenset[str]
    taken: float


@dataclass(frozen=True, slots=True)
class Holder:
    """A transaction that appended, or may have, and has not ended."""

    transaction: str
    pid: int | None
    application: str
    state: str
    age: float | None
    """Seconds since it began; None where this role may not see what others do."""
    gid: str | None

    def __str__(self) -> str:
        age = "open for an unknown time" if self.age is None else f"open for {self.age:.1f} s"
        if self.pid is None:
            return f"{self.name}, {age}"
        return f"{self.name} ({self.application or 'no application name'}), {self.state}, {age}"

    @property
    def name(self) -> str:
        """What PostgreSQL knows it by, for whoever may see no more."""
        return f"pid {self.pid}" if self.pid is not None else f"prepared transaction {self.gid!r}"

    @property
    def ended_by(self) -> str:
        """The statement that ends it."""
        if self.pid is not None:
            return f"select pg_terminate_backend({self.pid})"
        gid = (self.gid or "").replace("'", "''")
        return f"rollback prepared '{gid}'"


@dataclass(frozen=True, slots=True)
class HeldBack:
    """What lies beyond the horizon, and who keeps it there: for a moment, unless a transaction stays open."""

    horizon: int
    """The position up to which everything is final."""
    drawn: int
    """The newest position that was given to an append."""
    holders: tuple[Holder, ...] = ()
    """The transactions that may hold the horizon, the oldest first."""
    seconds: float = 0.0
    """The age of the oldest of them; where ages may not be seen, of the first message beyond the horizon."""

    @property
    def positions(self) -> int:
        """How many positions are held back."""
        return max(0, self.drawn - self.horizon) if self.holders else 0

    @property
    def lasting(self) -> tuple[Holder, ...]:
        """Those that hold it for longer than any short append takes; the oldest first."""
        ages = ((self.seconds if holder.age is None else holder.age) for holder in self.holders)
        return tuple(holder for holder, age in zip(self.holders, ages, strict=True) if age > NAME_AFTER)


@dataclass(frozen=True, slots=True)
class Life:
    """One life of the server: from its start, or its last crash, to its end."""

    token: UUID
    started: datetime


class Horizon:
    """Follows the horizon for a whole process, on a connection of its own."""

    blocking = False

    def __init__(self, database: Database, statements: Statements) -> None:
        self._database = database
        self._statements = statements
        self._connection: OwnConnection | None = None
        self._lock = asyncio.Lock()
        self._samples: deque[Sample] = deque()
        self._named: frozenset[str] = frozenset()
        self._stored_at = 0.0
        self._may_store = True
        self._life: Life | None = None
        self.forgot: Callable[[], None] = lambda: None
        """Called when the server has another life."""
        self._begun = 0
        self._finished = 0
        self.position = 0
        """Every position up to this one is final."""
        self.stored = 0
        """The horizon that the database remembers."""
        self.base = 0
        """The horizon that was stored when the server's life began: nothing behind it was lost before."""
        self.generation = 0
        """Grows whenever what was known has to be forgotten: the server has another life."""
        self.settled = False
        """Whether the last sample found nobody who might be appending."""
        self.covered = False
        """Whether the last sample found a mark that covers a sleep."""

    @property
    def life(self) -> UUID | None:
        """The token of the life that the horizon was last seen in."""
        return self._life.token if self._life else None

    @property
    def drawn(self) -> int:
        """The newest position that was given to an append, as the last sample found it."""
        return self._samples[-1].drawn if self._samples else self.position

    async def close(self) -> None:
        """Writes the horizon and ends the connection."""
        async with self._lock:
            if self._connection is not None:
                if not self._connection.closed:
                    await self._store(self._connection)
                await self._connection.close()
                self._connection = None

    async def execute(self, statement: LiteralString, parameters: Mapping[str, Any]) -> Sequence[Row]:
        """Runs a statement on the horizon's connection."""
        async with self._lock:
            return await self._fetch(statement, parameters)

    async def sample(self) -> None:
        """Looks once, after this call began; calls made meanwhile share the next look."""
        self._begun += 1
        wanted = self._begun
        async with self._lock:
            if self._finished < wanted:
                covers = self._begun
                await self._sample()
                self._finished = covers

    async def look(self) -> int:
        """The horizon as of now, for who does not wait: short appends are let pass, an open one ends it."""
        await self.sample()
        wanted = self._samples[-1].drawn if self._samples else self.position
        for pause in LOOK_PAUSES:
            if self.position >= wanted:
                return self.position
            await asyncio.sleep(pause)
            await self.sample()
        return self.position if self.position >= wanted else await self._run_above()

    async def _run_above(self) -> int:
        low = self.position
        while True:
            generation = self.generation
            parameters = {"low": low, "span": RUN_SPAN}
            end = (await self.execute(self._statements.get("run_above"), parameters))[0][0]
            self.passed(end, generation)
            if end < low + RUN_SPAN:
                return self.position
            low = end

    async def holders(self) -> list[Holder]:
        """The transactions that may hold the horizon now, the oldest first."""
        rows = await self._database.execute(self._statements.get("holders"), {})
        return [Holder(*row) for row in rows]

    async def held_back(self) -> HeldBack:
        """Return what lies beyond the horizon as it was last looked at, and who keeps it there."""
        position, drawn = self.position, self.drawn
        holders = tuple(await self.holders()) if drawn > position else ()
        ages = [holder.age for holder in holders if holder.age is not None]
        if len(ages) < len(holders):
            ages.append(await self._age_of_first(position + 1, drawn))
        return HeldBack(position, drawn, holders, max(ages, default=0.0))

    async def _age_of_first(self, low: int, high: int) -> float:
        sets = msgspec.json.encode([{"number": 0, "lows": [low], "highs": [high]}]).decode()
        rows = await self._database.execute(self._statements.get("oldest_within"), {"sets": sets})
        return float(rows[0][1]) if rows else 0.0

    def passed(self, position: int, generation: int) -> None:
        """Tells that all positions up to this one are final, by what was known in a generation."""
        if generation == self.generation:
            self.position = max(self.position, position)

    def _forget(self) -> None:
        """Drops what was known in another life of the server: positions may have gone backwards."""
        logger.info("horizon: starting anew after a restart of the server")
        self._samples.clear()
        self._life = None
        self.position = 0
        self.settled = self.covered = False
        self.generation += 1

    async def _fetch(self, statement: LiteralString, parameters: Mapping[str, Any]) -> Sequence[Row]:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = await self._database.connect()
            rows = await fetch(self._connection, statement, parameters, self._database.statement_seconds)
        except Unavailable as error:
            if self._connection is not None:
                self._database.failed(error, self._connection.opened_at)
            await self._lost()
            raise
        self._database.succeeded()
        return rows

    async def _lost(self) -> None:
        # What was known stays known if the server has the same life when it is reached again.
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _sample(self) -> None:
        drawn = await self._drawn()
        rows = await self._fetch(self._statements.get("sample_lockers"), {})
        still_open = frozenset(row[0] for row in rows)
        self._keep(Sample(drawn, still_open, monotonic()))
        self._settle(still_open)
        self.settled = not still_open
        await self._name_holders(still_open)
        if self._connection is not None and monotonic() - self._stored_at >= STORE_EVERY:
            await self._store(self._connection)

    async def _drawn(self) -> int:
        """How far the sequence is; notices another life of the server."""
        while True:
            statement = self._statements.get("sample_drawn")
            drawn, token, base, started, covered = (await self._fetch(statement, {"cover": COVER}))[0]
            if token is None:
                await self._fetch(self._statements.get("begin_life"), {})
                continue
            life = Life(token, started)
            if life == self._life:
                self.covered = covered
                return int(drawn)
            stored = (await self._fetch(self._statements.get("stored_horizon"), {}))[0][0]
            if self._life is not None:
                self._forget()
                self.forgot()
            self._life = life
            self.stored = self.position = min(stored, drawn)
            self.base = base

    def _keep(self, sample: Sample) -> None:
        if self._samples and sample.drawn == self._samples[-1].drawn:
            return
        if len(self._samples) >= MAX_SAMPLES:
            self._samples.pop()
        self._samples.append(sample)

    def _settle(self, still_open: frozenset[str]) -> None:
        while self._samples and self._samples[0].open.isdisjoint(still_open):
            self.position = max(self.position, self._samples.popleft().drawn)

    async def _name_holders(self, still_open: frozenset[str]) -> None:
        if not self._samples:
            self._named = frozenset()
            return
        held = self._samples[0].open & still_open
        if monotonic() - self._samples[0].taken < NAME_AFTER or held <= self._named:
            return
        self._named |= held
        rows = await self._fetch(self._statements.get("holders"), {})
        for holder in (Holder(*row) for row in rows):
            if holder.transaction in held:
                logger.warning("the horizon waits at position %d for %s", self.position, holder)

    async def _store(self, connection: Connection) -> None:
        self._stored_at = monotonic()
        if self.position <= self.stored or not self._may_store:
            return
        try:
            parameters = {"position": self.position, "life": self.life}
            await fetch(
                connection,
                self._statements.get("store_horizon"),
                parameters,
                self._database.statement_seconds,
            )
            self.stored = self.position
        except (Unavailable, psycopg.Error) as error:
            # A reader may not: with a false one it could hide messages from those who come later. It asks once.
            self._may_store = not isinstance(error, psycopg.errors.InsufficientPrivilege)
            logger.debug("the horizon was not stored: %s", error)
