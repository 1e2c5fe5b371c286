"""Takes progress that is kept in another database back to what survived of a log that went back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from milepost.errors import LogMismatch
from milepost.log.connections import Executor
from milepost.log.statements import Statements


class Beyond(NamedTuple):
    """A subscription whose progress knows more of the log than there is."""

    id: int
    group: str
    name: str
    positions: int
    """How many positions it goes back, at most."""
    deliveries: int
    """How many of its deliveries are forgotten."""


@dataclass(frozen=True)
class Rewind:
    """What is to be done."""

    survived: int
    """The log is what progress knows of it up to this position, for certain."""
    log: UUID
    id: UUID | None
    """Of the message at that position; None: nothing survived that is known."""
    subscriptions: Sequence[Beyond]


class Rewinding:
    """Compares the log with what progress remembers of it."""

    def __init__(self, log: Executor, progress: Executor, schema: str) -> None:
        self._log = log
        self._progress = progress
        self._log_statements = Statements(schema)
        self._statements = Statements(schema, "milepost.progress")

    async def plan(self) -> Rewind | None:
        """Return what is to be done; None if the log is as it was. Raises `LogMismatch` for another log."""
        identity = (await self._log.execute(self._log_statements.get("identity"), {}))[0][0]
        followed = await self._progress.execute(self._statements.get("followed_before"), {})
        if not followed:
            return None
        if any(log != identity for log, *_ in followed):
            raise LogMismatch("progress is that of another log: give the --url of that one")
        known = {position: id_ for _, _, position, id_ in followed if position is not None}
        parameters = {"positions": list(known), "ids": list(known.values())}
        rows = await self._log.execute(self._log_statements.get("newest_survivor"), parameters)
        survived = int(rows[0][0] or 0)
        if await self._is_intact(followed[0][1], max(known, default=0), survived):
            return None
        found = await self._progress.execute(self._statements.get("beyond"), {"survived": survived})
        return Rewind(survived, identity, known.get(survived), [Beyond(*row) for row in found])

    async def _is_intact(self, horizon: int, newest: int, survived: int) -> bool:
        statement = self._log_statements.get("drawn_and_id")
        [[drawn, found]] = await self._log.execute(statement, {"position": newest})
        return bool(drawn >= horizon and (survived == newest or found is None))

    async def run(self, rewind: Rewind) -> None:
        """Take everything back, in one transaction."""
        parameters = {"survived": rewind.survived, "log": rewind.log, "id": rewind.id}
        await self._progress.execute(self._statements.get("rewind"), parameters)
