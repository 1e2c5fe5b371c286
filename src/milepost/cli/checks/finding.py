"""What a check looks at and what it comes to."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, LiteralString

from milepost.log.database import Connection

Verdict = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """What one check came to."""

    check: str
    verdict: Verdict
    finding: str


@dataclass(frozen=True)
class Examined:
    """A database and the schema in it."""

    conninfo: str
    connection: Connection
    schema: str

    async def rows(self, statement: LiteralString, parameters: dict[str, Any] | None = None) -> Sequence[Any]:
        """What a statement returns."""
        return await (await self.connection.execute(statement, parameters or {})).fetchall()

    async def value(self, statement: LiteralString, parameters: dict[str, Any] | None = None) -> Any:
        """The one value that a statement returns."""
        return (await self.rows(statement, parameters))[0][0]


Check = Callable[[Examined], Awaitable[Finding]]
