"""What the store answers, as `milepost.dispatch.exchange` documents it."""

from collections.abc import Iterable, Mapping, Sequence

from dispatch.simulation.message import Log, Message
from milepost.dispatch.delivery import DeliveryRow, State
from milepost.dispatch.exchange import ExchangeQuery, HeldKey, LoadedRow

Rows = Mapping[int, DeliveryRow]


class Questions:
    """One lane's rows, as they are after the writes of an exchange; answered in the order of the methods."""

    def __init__(self, log: Log, rows: Rows, ask: ExchangeQuery, *, without_parked: bool) -> None:
        self._log = log
        self._rows = [rows[position] for position in sorted(rows)]
        self._ask = ask
        self._without_parked = without_parked
        self._loaded: set[int] = set()
        self._bytes = 0

    def asked(self) -> dict[str, HeldKey[Message]]:
        """The rows of the keys that were asked for, of those that have any."""
        return {key: held for key in self._ask.keys if (held := self._held(key, self._ask.per_key))}

    def due(self) -> list[LoadedRow[Message]]:
        """Rows that are due and that the lane does not hold, lowest first."""
        if not self._ask.due:
            return []
        due = [row for row in self._times() if row.due is not None and row.due <= self._ask.now]
        return self._load_some(due[: self._ask.limit])

    def next_due(self, due: Sequence[LoadedRow[Message]]) -> float | None:
        """When the earliest of the others is due."""
        if not self._ask.due:
            return None
        told = {loaded.row.position for loaded in due}
        return min(
            (row.due for row in self._times() if row.due is not None and row.position not in told), default=None
        )

    def heads(self) -> tuple[dict[str, HeldKey[Message]], str | None]:
        """Keys whose lowest row is waiting, and up to which key that was looked for."""
        after = self._ask.heads_after
        if after is None:
            return {}, None
        keys = [key for key in self._keys() if key > after and self._of_key(key)[0].state is State.WAITING]
        found: dict[str, HeldKey[Message]] = {}
        for key in keys:
            if len(found) == self._ask.limit or not self._fits(self._of_key(key)[0]):
                return found, max(found, default=after)
            found.update(self.found([key]))
        return found, None

    def found(self, keys: Iterable[str | None]) -> dict[str, HeldKey[Message]]:
        """The first row of keys that were found otherwise than by asking for them."""
        return {key: held for key in keys if key is not None and (held := self._held(key, 1))}

    def unrouted(self) -> tuple[list[LoadedRow[Message]], int | None]:
        """Unrouted rows in order, and up to where that was looked for."""
        after = self._ask.unrouted_after
        if after is None:
            return [], None
        found = [row for row in self._rows if self._is_unrouted(row, after)]
        some = self._load_some(found[: self._ask.unrouted_limit])
        if len(some) == len(found):
            return some, None
        return some, some[-1].row.position if some else after

    # Rows

    def _is_unrouted(self, row: DeliveryRow, after: int) -> bool:
        routes = self._ask.routes
        return (
            row.state is State.UNROUTED
            and row.position > after
            and (routes is None or row.route in routes)
            and not self._is_in_memory(row)
        )

    def _times(self) -> list[DeliveryRow]:
        return [row for row in self._rows if row.due is not None and not self._is_in_memory(row)]

    def _is_in_memory(self, row: DeliveryRow) -> bool:
        return self._ask.holding.get(row.position) == row.revision

    def _keys(self) -> list[str]:
        return sorted({row.key for row in self._rows if row.key is not None and self._holds(row)})

    def _of_key(self, key: str) -> list[DeliveryRow]:
        return [row for row in self._rows if row.key == key and self._holds(row)]

    def _holds(self, row: DeliveryRow) -> bool:
        if row.state is State.SKIPPED:
            return False
        return row.state is not State.PARKED or not self._without_parked

    # Messages, as many as fit

    def _held(self, key: str, limit: int) -> HeldKey[Message] | None:
        """The first row of a key in any case, others as long as they fit."""
        rows = self._of_key(key)
        if not rows:
            return None
        some = [self._load(rows[0]), *self._load_some(rows[1:limit])]
        return HeldKey(some, len(some) < len(rows))

    def _load_some(self, rows: Sequence[DeliveryRow]) -> list[LoadedRow[Message]]:
        loaded = []
        for row in rows:
            if not self._fits(row):
                break
            loaded.append(self._load(row))
        return loaded

    def _fits(self, row: DeliveryRow) -> bool:
        if not self._loaded or row.position in self._loaded:
            return True
        return self._bytes + self._log.by_position[row.position].size <= self._ask.bytes

    def _load(self, row: DeliveryRow) -> LoadedRow[Message]:
        message = self._log.by_position[row.position]
        if row.position not in self._loaded:
            self._loaded.add(row.position)
            self._bytes += message.size
        return LoadedRow(row, message)
