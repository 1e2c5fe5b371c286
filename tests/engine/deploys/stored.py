"""What is stored of the subscription of a deploy."""

from dataclasses import dataclass
from typing import Any

import msgspec
from psycopg import sql

from milepost.names import bucket_of
from support import Connection

DEFINITIONS = """
    select d.number, d.orders, d.lanes, d.positions, d.aheads::text
    from {0}.definitions d join {0}.subscriptions s on s.id = d.subscription where s.name = 'orders' order by 1
"""
ROWS = """
    select d."position", d.state, d.lane, d.key, d.attempts
    from {0}.deliveries d join {0}.subscriptions s on s.id = d.subscription where s.name = 'orders' order by 1
"""
BARRIER = (
    "select s.barrier_at from {0}.subscriptions s where s.barrier_until > clock_timestamp() and s.name = 'orders'"
)


@dataclass(frozen=True)
class Definition:
    """A definition, and where each lane left the one before."""

    number: int
    orders: str
    lanes: int
    positions: list[int]
    aheads: list[list[int]]

    def had_passed(self, stream: str, position: int) -> bool:
        """Whether a message had been decided on before, where streams are kept in order."""
        lane = bucket_of(stream) % len(self.positions)
        ahead = self.aheads[lane]
        return position <= self.positions[lane] or any(
            first <= position <= last for first, last in zip(ahead[::2], ahead[1::2], strict=True)
        )


@dataclass(frozen=True)
class Row:
    """A delivery."""

    position: int
    state: str
    lane: int
    key: str | None
    attempts: int


class Stored:
    """Looks into the schema in which progress is kept."""

    def __init__(self, url: str, schema: str) -> None:
        self._url = url
        self._schema = schema

    async def definitions(self) -> list[Definition]:
        """All there were, in order."""
        return [
            Definition(number, orders, lanes, positions, msgspec.json.decode(aheads))
            for number, orders, lanes, positions, aheads in await self.ask(DEFINITIONS)
        ]

    async def rows(self) -> dict[int, Row]:
        """All deliveries, by position."""
        return {row[0]: Row(*row) for row in await self.ask(ROWS)}

    async def barrier(self) -> str | None:
        """What stands: lanes are to be `let go`, or brought to a position."""
        rows = await self.ask(BARRIER)
        if not rows:
            return None
        return "let go" if rows[0][0] is None else "brought"

    async def ask(self, text: str) -> list[tuple[Any, ...]]:
        """Asks something; `{0}` is the schema."""
        statement = sql.SQL(text).format(sql.Identifier(self._schema))
        async with await Connection.connect(self._url, autocommit=True) as connection:
            cursor = await connection.execute(statement)
            return await cursor.fetchall() if cursor.description else []
