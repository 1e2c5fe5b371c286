"""What was found for a question, before it is known how many bytes of messages that is."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from milepost.dispatch import Ask, HeldKey, Loaded
from milepost.progress.protocol import Bare

Rows = Sequence[Loaded[Bare]]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Rows within the limits of a question but for bytes."""

    held: Mapping[str, HeldKey[Bare]] = msgspec.field(default_factory=dict)
    """Some rows of keys that were asked for, the first one of those of `heads` and of what is due."""
    due: Rows = ()
    """Earliest first."""
    next_due: float | None = None
    heads: Sequence[str] = ()
    heads_end: str | None = None
    unrouted: Rows = ()
    unrouted_end: int | None = None

    def answers(self, ask: Ask) -> dict[str, Any]:
        """The answers, by name, as far as their messages are not too large together."""
        return _Fitting(self, ask).answers()


class _Fitting:
    """Counts the bytes of what is told: first of keys that were asked for, then of what is due, and so on."""

    def __init__(self, found: Found, ask: Ask) -> None:
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
            "due": sorted(due, key=_position),
            "next_due": next_due,
            "heads_end": heads_end,
            "unrouted": unrouted,
            "unrouted_end": unrouted_end,
        }

    def _held(self, key: str, found: HeldKey[Bare]) -> HeldKey[Bare]:
        """The first row of a key in any case, others as long as they fit."""
        self._tell(found.rows[0])
        rows = [found.rows[0], *self._some(found.rows[1:])]
        return HeldKey(rows, found.more or len(rows) < len(found.rows))

    def _first(self, found: HeldKey[Bare]) -> HeldKey[Bare]:
        return HeldKey(found.rows[:1], found.more or len(found.rows) > 1)

    def _due(self) -> tuple[Rows, float | None]:
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

    def _unrouted(self) -> tuple[Rows, int | None]:
        found = self._found.unrouted
        told = self._some(found)
        if len(told) == len(found):
            return told, self._found.unrouted_end
        return told, told[-1].row.position if told else self._ask.unrouted_after

    def _some(self, rows: Iterable[Loaded[Bare]]) -> Rows:
        """As many of them, from the first on, as fit; what was told already takes no room."""
        told: list[Loaded[Bare]] = []
        for loaded in rows:
            row = loaded.row
            fits = not self._told or row.position in self._told or self._bytes + row.size <= self._ask.bytes
            if not fits:
                break
            self._tell(loaded)
            told.append(loaded)
        return told

    def _tell(self, loaded: Loaded[Bare]) -> None:
        if loaded.row.position not in self._told:
            self._told.add(loaded.row.position)
            self._bytes += loaded.row.size


def _position(loaded: Loaded[Bare]) -> int:
    return loaded.row.position
