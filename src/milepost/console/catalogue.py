"""What there is in the log: streams, categories and types, by the beginning of their names, in pages.

Nothing is counted: each page costs the same however long the log is.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from milepost.log.statements import Statements
from milepost.names import MAX_NAME_BYTES, category_hash
from milepost.server.access.reach import Reach

T = TypeVar("T")

PAGE = 50
"""Names of a page."""
NEWEST = 20_000
"""Messages that are looked at for their types."""
MOST_TYPES = 500
"""Types that are shown; whoever has more looks for the beginning of a name."""
_LAST = "\U0010ffff" * MAX_NAME_BYTES
"""Behind everything that a name can go on with."""


@dataclass(frozen=True)
class Newest:
    """The newest message of something."""

    position: int
    type: str
    time: datetime


@dataclass(frozen=True)
class Stream:
    """A stream and how far it goes."""

    name: str
    version: int
    """Of its last message; 0 if there is none any more."""
    newest: Newest | None


@dataclass(frozen=True)
class Category:
    """A category of streams."""

    name: str
    newest: Newest | None


@dataclass(frozen=True)
class Type:
    """A type of messages."""

    name: str
    recent: int
    """How many of the newest messages have it."""
    newest: Newest | None
    share: float | None
    """Of the whole log, as the database estimates it; None if it is too rare for that, or not known yet."""


@dataclass(frozen=True)
class Names(Generic[T]):
    """A page of a catalogue."""

    found: Sequence[T]
    after: str | None
    """What the next page begins with; None if this is the last."""


class Catalogue:
    """Looks names up by their beginning: those within a scope."""

    def __init__(self, reach: Reach) -> None:
        self._scope = reach.scope
        self._mp = mp = reach.mp
        self._statements = Statements(mp.settings["schema"].value, "milepost.console")

    async def streams(self, prefix: str, after: str) -> Names[Stream]:
        """Streams in the order of their names."""
        ranges = _ranges(self._scope.categories)
        rows = await self._rows("streams", **_between(prefix, after), **ranges, limit=PAGE + 1)
        found = [Stream(name, version or 0, _newest(*newest)) for name, version, *newest in rows[:PAGE]]
        return Names(found, rows[PAGE][0] if len(rows) > PAGE else None)

    async def categories(self, prefix: str, after: str) -> Names[Category]:
        """Categories in the order of their streams' names."""
        if self._scope.categories is not None:
            return await self._own_categories(self._scope.categories, prefix)
        rows = await self._rows("categories", **_between(prefix, after), limit=PAGE + 1)
        found = [
            Category(name, _newest(*newest)) for name, *newest, _, comes_later in rows[:PAGE] if not comes_later
        ]
        return Names(found, rows[PAGE - 1][4] if len(rows) > PAGE else None)

    async def _own_categories(self, own: Collection[str], prefix: str) -> Names[Category]:
        """Those of a scope, which are few."""
        names = sorted(name for name in own if name.startswith(prefix))
        rows = await self._rows("named_categories", categories=names)
        newest = {name: _newest(*newest) for name, *newest in rows}
        return Names([Category(name, newest[name]) for name in names], None)

    async def types(self, prefix: str, category: str) -> Sequence[Type]:
        """The types of the newest messages, and without a category those that are common in the whole log."""
        categories = self._scope.narrowed([category] if category else None, None)
        hashes = None if categories is None else list(map(category_hash, categories))
        rows = await self._rows("types", **_between(prefix, ""), hashes=hashes, newest=NEWEST, limit=MOST_TYPES)
        shares = await self._shares(prefix) if categories is None else {}
        found = {
            name: Type(name, recent, _newest(position, name, time), shares.get(name))
            for name, recent, position, time in rows
        }
        older = {name: Type(name, 0, None, share) for name, share in shares.items() if name not in found}
        return sorted([*found.values(), *older.values()], key=lambda each: each.name)

    async def _shares(self, prefix: str) -> dict[str, float]:
        rows = await self._rows("common_types")
        return {name: share for name, share in rows if name.startswith(prefix)}

    async def _rows(self, name: str, **parameters: Any) -> Sequence[Any]:
        return await self._mp.log.database.execute(self._statements.get(name), parameters)


def _between(prefix: str, after: str) -> dict[str, str]:
    """Names that begin with a text, from another on; they are sorted by their bytes."""
    low = max(prefix, after, key=lambda text: text.encode(errors="replace"))
    return {"low": low, "high": prefix + _LAST}


def _ranges(categories: Collection[str] | None) -> dict[str, list[str]]:
    """The names that streams of some categories have: the category's own, and those that go on with a dash."""
    if categories is None:
        return {"lows": [""], "highs": [_LAST]}
    low_and_high = [each for name in categories for each in ((name, f"{name}\x01"), (f"{name}-", f"{name}."))]
    return {"lows": [low for low, _ in low_and_high], "highs": [high for _, high in low_and_high]}


def _newest(position: int | None, type: str | None, time: datetime | None) -> Newest | None:
    return None if position is None or type is None or time is None else Newest(position, type, time)
