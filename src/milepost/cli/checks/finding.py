"""The input and the result of a check: the examined database and the finding."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, LiteralString

from milepost.postgres.pool import Connection
from milepost.postgres.statements import Statements

Verdict = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """The result of one check, or its result for one subject."""

    check: str
    verdict: Verdict
    finding: str
    subject: str | None = None
    """The subscription, worker or table that it is about, if it is about one."""


class NotPermitted(Finding):
    """The finding of a check that this user has no right to run."""


@dataclass(frozen=True)
class ExaminedDatabase:
    """A database and the schema in it."""

    conninfo: str
    connection: Connection
    schema: str
    elsewhere: "ExaminedDatabase | None" = None
    """The database of progress, if that is another than the log's."""

    @property
    def progress(self) -> "ExaminedDatabase":
        """The database of progress."""
        return self.elsewhere or self

    @property
    def databases(self) -> list["ExaminedDatabase"]:
        """The log's, and that of progress if it is another."""
        return [self] if self.elsewhere is None else [self, self.elsewhere]

    async def rows(self, statement: LiteralString, parameters: dict[str, Any] | None = None) -> Sequence[Any]:
        """Return the rows of a statement."""
        # In binary: the driver reads timestamps as text in one style only, and a role may have another.
        return await (await self.connection.execute(statement, parameters or {}, binary=True)).fetchall()

    async def value(self, statement: LiteralString, parameters: dict[str, Any] | None = None) -> Any:
        """Return the one value of a statement."""
        return (await self.rows(statement, parameters))[0][0]

    async def ask(self, name: str, **parameters: Any) -> Sequence[Any]:
        """Return the rows of a named statement of the checks."""
        return await self.rows(Statements(self.schema, "milepost.cli.checks").get(name), parameters)


Check = Callable[[ExaminedDatabase], Awaitable[Finding | list[Finding]]]


def shorten(findings: list[Finding], most: int) -> list[Finding]:
    """Return at most `most` findings of one check, and one more that says how many were left out."""
    left = len(findings) - most
    if left <= 0:
        return findings
    return [*findings[:most], Finding(findings[0].check, findings[most].verdict, f"and {left:,} more like these")]
