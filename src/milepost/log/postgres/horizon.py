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
from milepost.log import protocol
from milepost.log.protocol import HeldBack, HorizonHolder
from milepost.postgres.connections import ResultRow
from milepost.postgres.pool import Connection, Database, OwnConnection, fetch_rows
from milepost.postgres.statements import Statements

logger = logging.getLogger("milepost.log.horizon")

HORIZON_STORE_SECONDS = 5.0
"""Seconds between two writes of the horizon, where a new process starts from."""
MAX_SAMPLES = 128
"""Samples kept while a transaction holds the horizon; further ones replace the newest."""
LOOK_PAUSE_SECONDS = (0.001, 0.002, 0.004, 0.008)
"""Seconds between the looks of who does not wait."""
RUN_SPAN_POSITIONS = 10_000
"""How many positions one statement checks for a run."""
SLEEP_COVER_TIME = timedelta(seconds=5)
"""How long a sleep may be that a mark in the database has to cover."""


@dataclass(frozen=True, slots=True)
class HorizonSample:
    """How far the sequence had been drawn, and who had not ended then."""

    drawn: int
    open: frozenset[str]
    taken: float


@dataclass(frozen=True, slots=True)
class ServerLife:
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
        self._samples: deque[HorizonSample] = deque()
        self._named: frozenset[str] = frozenset()
        self._stored_at = 0.0
        self._may_store = True
        self._life: ServerLife | None = None
        self.on_new_life: Callable[[], None] = lambda: None
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
        self.is_settled = False
        """Whether the last sample found nobody who might be appending."""
        self.is_covered = False
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

    async def execute(self, statement: LiteralString, parameters: Mapping[str, Any]) -> Sequence[ResultRow]:
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
        for pause in LOOK_PAUSE_SECONDS:
            if self.position >= wanted:
                return self.position
            await asyncio.sleep(pause)
            await self.sample()
        return self.position if self.position >= wanted else await self._run_above()

    async def _run_above(self) -> int:
        low = self.position
        while True:
            generation = self.generation
            parameters = {"low": low, "span": RUN_SPAN_POSITIONS}
            end = (await self.execute(self._statements.get("run_above"), parameters))[0][0]
            self.passed(end, generation)
            if end < low + RUN_SPAN_POSITIONS:
                return self.position
            low = end

    async def holders(self) -> list[HorizonHolder]:
        """The transactions that may hold the horizon now, the oldest first."""
        rows = await self._database.execute(self._statements.get("holders"), {})
        return [HorizonHolder(*row) for row in rows]

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
        self.is_settled = self.is_covered = False
        self.generation += 1

    async def _fetch(self, statement: LiteralString, parameters: Mapping[str, Any]) -> Sequence[ResultRow]:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = await self._database.connect()
            rows = await fetch_rows(self._connection, statement, parameters, self._database.statement_seconds)
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
        self._keep(HorizonSample(drawn, still_open, monotonic()))
        self._settle(still_open)
        self.is_settled = not still_open
        await self._name_holders(still_open)
        if self._connection is not None and monotonic() - self._stored_at >= HORIZON_STORE_SECONDS:
            await self._store(self._connection)

    async def _drawn(self) -> int:
        """How far the sequence is; notices another life of the server."""
        while True:
            statement = self._statements.get("sample_drawn")
            drawn, token, base, started, covered = (await self._fetch(statement, {"cover": SLEEP_COVER_TIME}))[0]
            if token is None:
                await self._fetch(self._statements.get("begin_life"), {})
                continue
            life = ServerLife(token, started)
            if life == self._life:
                self.is_covered = covered
                return int(drawn)
            stored = (await self._fetch(self._statements.get("stored_horizon"), {}))[0][0]
            if self._life is not None:
                self._forget()
                self.on_new_life()
            self._life = life
            self.stored = self.position = min(stored, drawn)
            self.base = base

    def _keep(self, sample: HorizonSample) -> None:
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
        if monotonic() - self._samples[0].taken < protocol.HOLDER_NAMED_SECONDS or held <= self._named:
            return
        self._named |= held
        rows = await self._fetch(self._statements.get("holders"), {})
        for holder in (HorizonHolder(*row) for row in rows):
            if holder.transaction in held:
                logger.warning("the horizon waits at position %d for %s", self.position, holder)

    async def _store(self, connection: Connection) -> None:
        self._stored_at = monotonic()
        if self.position <= self.stored or not self._may_store:
            return
        try:
            parameters = {"position": self.position, "life": self.life}
            await fetch_rows(
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
