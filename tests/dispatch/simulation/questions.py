"""What the store answers, as `milepost.dispatch.exchange` documents it."""

from collections.abc import Iterable, Mapping, Sequence

from dispatch.simulation.message import Log, Message
from milepost.dispatch.delivery import Row, State
from milepost.dispatch.exchange import Ask, HeldKey, Loaded

Rows = Mapping[int, Row]


class Questions:
    """One lane's rows, as they are after the writes of an exchange."""

    def __init__(self, log: Log, rows: Rows, ask: Ask, *, without_parked: bool) -> None:
        self._log = log
        self._rows = [rows[position] for position in sorted(rows)]
        self._ask = ask
        self._without_parked = without_parked

    def due(self) -> list[Loaded[Message]]:
        """Rows that are due and that the lane does not hold, lowest first."""
        if not self._ask.due:
            return []
        return self._loaded(row for row in self._times() if row.due is not None and row.due <= self._ask.now)

    def next_due(self, due: Sequence[Loaded[Message]]) -> float | None:
        """When the earliest of the others is due."""
        if not self._ask.due:
            return None
        told = {loaded.row.position for loaded in due}
        return min(
            (row.due for row in self._times() if row.due is not None and row.position not in told), default=None
        )

    def heads(self) -> tuple[list[str], str | None]:
        """Keys whose lowest row is waiting, and up to which key that was looked for."""
        after = self._ask.heads_after
        if after is None:
            return [], None
        found = [key for key in self._keys() if key > after and self._of_key(key)[0].state is State.WAITING]
        some = found[: self._ask.limit]
        if len(some) == len(found):
            return some, None
        return some, some[-1] if some else after

    def held(self, keys: Iterable[str]) -> dict[str, HeldKey[Message]]:
        """The rows of these keys, of those that have any."""
        held = {}
        for key in sorted(set(keys)):
            rows = self._of_key(key)
            if rows:
                per_key = self._ask.per_key
                held[key] = HeldKey([self._load(row) for row in rows[:per_key]], len(rows) > per_key)
        return held

    def unrouted(self) -> tuple[list[Loaded[Message]], int | None]:
        """Unrouted rows in order, and up to where that was looked for."""
        after = self._ask.unrouted_after
        if after is None:
            return [], None
        found = [row for row in self._rows if self._is_unrouted(row, after)]
        some = [self._load(row) for row in found[: self._ask.unrouted_limit]]
        if len(some) == len(found):
            return some, None
        return some, some[-1].row.position if some else after

    def _is_unrouted(self, row: Row, after: int) -> bool:
        routes = self._ask.routes
        return (
            row.state is State.UNROUTED
            and row.position > after
            and (routes is None or row.route in routes)
            and not self._is_in_memory(row)
        )

    def _times(self) -> list[Row]:
        return [row for row in self._rows if row.due is not None and not self._is_in_memory(row)]

    def _is_in_memory(self, row: Row) -> bool:
        return self._ask.holding.get(row.position) == row.revision

    def _keys(self) -> list[str]:
        return sorted({row.key for row in self._rows if row.key is not None and self._holds(row)})

    def _of_key(self, key: str) -> list[Row]:
        return [row for row in self._rows if row.key == key and self._holds(row)]

    def _holds(self, row: Row) -> bool:
        if row.state is State.SKIPPED:
            return False
        return row.state is not State.PARKED or not self._without_parked

    def _loaded(self, rows: Iterable[Row]) -> list[Loaded[Message]]:
        return [self._load(row) for row in rows][: self._ask.limit]

    def _load(self, row: Row) -> Loaded[Message]:
        return Loaded(row, self._log.by_position[row.position])
