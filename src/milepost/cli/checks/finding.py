"""What a check looks at and what it comes to."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, LiteralString

from milepost.log.database import Connection
from milepost.log.statements import Statements

Verdict = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """What one check came to, or what it came to for one subject."""

    check: str
    verdict: Verdict
    finding: str
    subject: str | None = None
    """The subscription, worker or table that it is about, if it is about one."""


class Refused(Finding):
    """This user may not look."""


@dataclass(frozen=True)
class Examined:
    """A database and the schema in it."""

    conninfo: str
    connection: Connection
    schema: str
    elsewhere: "Examined | None" = None
    """Where progress is kept, if that is another database than the log's."""

    @property
    def progress(self) -> "Examined":
        """Where progress is kept."""
        return self.elsewhere or self

    @property
    def databases(self) -> list["Examined"]:
        """The log's, and that of progress if it is another."""
        return [self] if self.elsewhere is None else [self, self.elsewhere]

    async def rows(self, statement: LiteralString, parameters: dict[str, Any] | None = None) -> Sequence[Any]:
        """What a statement returns."""
        # In binary: the driver reads timestamps as text in one style only, and a role may have another.
        return await (await self.connection.execute(statement, parameters or {}, binary=True)).fetchall()

    async def value(self, statement: LiteralString, parameters: dict[str, Any] | None = None) -> Any:
        """The one value that a statement returns."""
        return (await self.rows(statement, parameters))[0][0]

    async def ask(self, name: str, **parameters: Any) -> Sequence[Any]:
        """What a statement of these checks returns."""
        return await self.rows(Statements(self.schema, "milepost.cli.checks").get(name), parameters)


Check = Callable[[Examined], Awaitable[Finding | list[Finding]]]


def shortened(findings: list[Finding], most: int) -> list[Finding]:
    """At most so many of the findings of one check, and a word on how many more there are."""
    left = len(findings) - most
    if left <= 0:
        return findings
    return [*findings[:most], Finding(findings[0].check, findings[most].verdict, f"and {left:,} more like these")]
