"""Takes progress that is kept in another database back to what survived of a log that went back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from milepost.errors import LogMismatch
from milepost.log.connections import Executor
from milepost.log.statements import Statements
from milepost.progress.following import Followed, messages_of


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
    last: Followed | None
    """The message at that position; None: nothing survived that is known."""
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
        rows = await self._progress.execute(self._statements.get("followed"), {})
        followed = [Followed(*row) for row in rows]
        if any(each.log != identity for each in followed):
            raise LogMismatch("progress is that of another log: give the --url of that one")
        if not followed or await self._is_intact(followed):
            return None
        survived = await self._survived(followed)
        last = next((each for each in followed if each.position == survived), None)
        found = await self._progress.execute(self._statements.get("beyond"), {"survived": survived})
        return Rewind(survived, identity, last, [Beyond(*row) for row in found])

    async def _is_intact(self, followed: Sequence[Followed]) -> bool:
        [[drawn, replaced]] = await self._log.execute(self._log_statements.get("replaced"), messages_of(followed))
        return bool(drawn >= followed[0].horizon and replaced is None)

    async def _survived(self, followed: Sequence[Followed]) -> int:
        """Return the position of the newest message that is remembered and there, before any that was replaced."""
        [[_, replaced]] = await self._log.execute(self._log_statements.get("replaced"), messages_of(followed))
        below = [each for each in followed if replaced is None or (each.position or 0) < replaced]
        [[survived]] = await self._log.execute(self._log_statements.get("newest_survivor"), messages_of(below))
        return int(survived or 0)

    async def run(self, rewind: Rewind) -> None:
        """Take everything back, in one transaction."""
        last = rewind.last
        parameters = {
            "survived": rewind.survived,
            "log": rewind.log,
            "id": None if last is None else last.id,
            "time": None if last is None else last.time,
        }
        await self._progress.execute(self._statements.get("rewind"), parameters)
