"""Short words for tests of progress: definitions, rows, exchanges."""

from collections.abc import Sequence
from typing import Any

from milepost.dispatch import (
    AttemptTally,
    Cursor,
    DeliveryRow,
    Exchange,
    ExchangeAnswer,
    ExchangeQuery,
    ExchangeWrite,
    LoadedRow,
    RowChange,
    State,
)
from milepost.progress.protocol import (
    ExchangeResult,
    LaneGrant,
    Progress,
    RowOnly,
    SubscriptionDefinition,
    WorkerLease,
)

STALL_AFTER = 1000


def definition(name: str = "s", **changes: Any) -> SubscriptionDefinition:
    """A subscription with two lanes, unless it says otherwise."""
    values: dict[str, Any] = {"group": "g", "lanes": 2, "selects": "everything", "orders": "stream"}
    return SubscriptionDefinition(**{**values, "name": name, "start": Cursor(0), **changes})


async def taken(progress: Progress, lane: int = 0, **changes: Any) -> LaneGrant:
    """A lane of a subscription."""
    sign = WorkerLease("w", 30)
    [opened] = await progress.declare([definition(**changes)], sign)
    [held] = await progress.take(opened.id, [lane], worker=sign.worker)
    return held


def row(position: int, state: str = "waiting", key: str | None = "k", **values: Any) -> DeliveryRow:
    """A row."""
    return DeliveryRow(**{"position": position, "key": key, "state": State(state), "since": 1000.0, **values})


class Owner:
    """Holds a lane and writes it."""

    def __init__(self, progress: Progress, held: LaneGrant, on_park: str = "block") -> None:
        self.progress = progress
        self.held = held
        self.on_park = on_park

    async def swap(
        self,
        write: ExchangeWrite | None,
        ask: ExchangeQuery | None = None,
        *,
        stall_after: int = STALL_AFTER,
        connection: Any = None,
    ) -> ExchangeAnswer[RowOnly]:
        """One exchange."""
        exchanged: ExchangeResult = await self.progress.exchange(
            self.held,
            Exchange(0.0, write, ask),
            stall_after=stall_after,
            on_park=self.on_park,
            connection=connection,
        )
        self.held = exchanged.held
        return exchanged.answer

    async def move(
        self, *moves: RowChange, failed: int = 0, succeeded: int = 0, **options: Any
    ) -> ExchangeAnswer[RowOnly]:
        """Writes rows, and the cursor where it was."""
        write = ExchangeWrite(self.held.state.cursor, moves, AttemptTally(succeeded, failed))
        return await self.swap(write, **options)

    async def add(self, *rows: DeliveryRow, **options: Any) -> ExchangeAnswer[RowOnly]:
        """Writes rows that are not there yet."""
        return await self.move(*(RowChange(row.position, None, row) for row in rows), **options)

    async def ask(self, **question: Any) -> ExchangeAnswer[RowOnly]:
        """Asks, and writes nothing."""
        return await self.swap(None, asking(**question))


def asking(**question: Any) -> ExchangeQuery:
    """A question, at 2000 seconds after 1970."""
    return ExchangeQuery(**{"now": 2000.0, "limit": 10, "bytes": 1000, "per_key": 10, "holding": {}, **question})


def positions(loaded: Sequence[LoadedRow[RowOnly]]) -> list[int]:
    """Of rows, each of which has its message's position."""
    assert [one.message.position for one in loaded] == [one.row.position for one in loaded]
    return [one.row.position for one in loaded]


def held_positions(answer: ExchangeAnswer[RowOnly]) -> dict[str, tuple[list[int], bool]]:
    """The rows of each held key, and whether there are more."""
    return {key: (positions(held.rows), held.more) for key, held in answer.held.items()}
