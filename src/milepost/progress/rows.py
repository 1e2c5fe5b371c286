"""Rows of deliveries, cut to what can be stored, and to the bytes that a question allows."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from milepost.dispatch import DeliveryRow, ExchangeQuery, HeldKey, LoadedRow, RowChange
from milepost.progress.protocol import RowOnly

MAX_TEXT_BYTES = 8192
"""Bytes of a reason or an error that are kept."""
MAX_DUE_TIME = 1e11
"""The latest time that a row can be due, in seconds since 1970: some three thousand years ahead."""


def storable_moves(moves: Sequence[RowChange]) -> list[RowChange]:
    """The moves, with rows that can be stored."""
    return [
        RowChange(move.position, move.replaces, _storable_row(move.row), move.required) if move.row else move
        for move in moves
    ]


def _storable_row(row: DeliveryRow) -> DeliveryRow:
    reason, error, due = storable_text(row.reason), storable_text(row.error), _storable_time(row.due)
    if reason is row.reason and error is row.error and due is row.due:
        return row
    return row.changed(reason=reason, error=error, due=due)


def storable_text(text: str) -> str:
    """Without what PostgreSQL cannot hold, and not longer than what is kept."""
    if len(text) <= MAX_TEXT_BYTES and text.isascii() and "\0" not in text:
        return text
    whole = text.replace("\0", "").encode("utf-8", "replace")
    return whole[:MAX_TEXT_BYTES].decode("utf-8", "ignore")


def _storable_time(due: float | None) -> float | None:
    # Written so that NaN is late as well.
    return due if due is None or due <= MAX_DUE_TIME else MAX_DUE_TIME


LoadedRows = Sequence[LoadedRow[RowOnly]]


class FoundRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows within the limits of a question but for bytes."""

    held: Mapping[str, HeldKey[RowOnly]] = msgspec.field(default_factory=dict)
    """Some rows of keys that were asked for, the first one of those of `heads` and of what is due."""
    due: LoadedRows = ()
    """Earliest first."""
    next_due: float | None = None
    heads: Sequence[str] = ()
    heads_end: str | None = None
    unrouted: LoadedRows = ()
    unrouted_end: int | None = None

    def answers(self, ask: ExchangeQuery) -> dict[str, Any]:
        """The answers, by name, as far as their messages are not too large together."""
        return _ByteBudget(self, ask).answers()


class _ByteBudget:
    """Counts the bytes of what is told: first of keys that were asked for, then of what is due, and so on."""

    def __init__(self, found: FoundRows, ask: ExchangeQuery) -> None:
        self._found = found
        self._ask = ask
        self._told: set[int] = set()
        self._bytes = 0

    def answers(self) -> dict[str, Any]:
        held = {key: self._held(key, self._found.held[key]) for key in self._ask.keys if key in self._found.held}
        due, next_due = self._due()
        heads, heads_end = self._heads()
        unrouted, unrouted_end = self._unrouted()
        for key in (*heads, *(loaded.row.key for loaded in due)):
            if key is not None and key not in held and key in self._found.held:
                held[key] = self._first(self._found.held[key])
        return {
            "held": held,
            "due": sorted(due, key=_row_position),
            "next_due": next_due,
            "heads_end": heads_end,
            "unrouted": unrouted,
            "unrouted_end": unrouted_end,
        }

    def _held(self, key: str, found: HeldKey[RowOnly]) -> HeldKey[RowOnly]:
        """The first row of a key in any case, others as long as they fit."""
        self._tell(found.rows[0])
        rows = [found.rows[0], *self._some(found.rows[1:])]
        return HeldKey(rows, found.more or len(rows) < len(found.rows))

    def _first(self, found: HeldKey[RowOnly]) -> HeldKey[RowOnly]:
        return HeldKey(found.rows[:1], found.more or len(found.rows) > 1)

    def _due(self) -> tuple[LoadedRows, float | None]:
        found = self._found.due
        told = self._some(found)
        if len(told) == len(found):
            return told, self._found.next_due
        return told, found[len(told)].row.due

    def _heads(self) -> tuple[Sequence[str], str | None]:
        keys = self._found.heads
        told = self._some(self._found.held[key].rows[0] for key in keys)
        if len(told) == len(keys):
            return keys, self._found.heads_end
        return keys[: len(told)], keys[len(told) - 1] if told else self._ask.heads_after

    def _unrouted(self) -> tuple[LoadedRows, int | None]:
        found = self._found.unrouted
        told = self._some(found)
        if len(told) == len(found):
            return told, self._found.unrouted_end
        return told, told[-1].row.position if told else self._ask.unrouted_after

    def _some(self, rows: Iterable[LoadedRow[RowOnly]]) -> LoadedRows:
        """As many of them, from the first on, as fit; what was told already takes no room."""
        told: list[LoadedRow[RowOnly]] = []
        for loaded in rows:
            row = loaded.row
            fits = not self._told or row.position in self._told or self._bytes + row.size <= self._ask.bytes
            if not fits:
                break
            self._tell(loaded)
            told.append(loaded)
        return told

    def _tell(self, loaded: LoadedRow[RowOnly]) -> None:
        if loaded.row.position not in self._told:
            self._told.add(loaded.row.position)
            self._bytes += loaded.row.size


def _row_position(loaded: LoadedRow[RowOnly]) -> int:
    return loaded.row.position
