"""Names that are used in the log, by their beginning, and messages by what they were caused by.

Nothing is counted: each page costs the same however long the log is.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from milepost.log.protocol import CatalogueEntry, CataloguePage, RelatedMessage
from milepost.names import MAX_NAME_BYTES, category_hash
from milepost.postgres.connections import Executor, ResultRow
from milepost.postgres.statements import Statements

CatalogueKind = Literal["category", "stream", "type"]

_LAST_SUFFIX = "\U0010ffff" * MAX_NAME_BYTES
"""Behind everything that a name can go on with."""


class Catalogue:
    """Looks names up by their beginning."""

    def __init__(self, executor: Executor, statements: Statements) -> None:
        self._executor = executor
        self._statements = statements

    async def page(
        self,
        kind: CatalogueKind,
        prefix: str,
        after: str,
        within: Sequence[str] | None,
        *,
        limit: int,
        newest: int,
    ) -> CataloguePage:
        """Return names of one kind; see `milepost.log.protocol.Log.catalogue`."""
        match kind:
            case "stream":
                return await self._streams(prefix, after, within, limit)
            case "category" if within is not None:
                return await self._named_categories(prefix, within)
            case "category":
                return await self._categories(prefix, after, limit)
            case "type":
                return await self._types(prefix, after, within, limit, newest)

    async def related(
        self, correlation: str, id: UUID, *, low: int, below: int, above: int, high: int, limit: int
    ) -> list[RelatedMessage]:
        """Return messages with a correlation id, or caused by one message, on both sides of a range."""
        rows = await self._rows(
            "related",
            correlation=correlation,
            id=str(id),
            low=low,
            below=below,
            above=above,
            high=high,
            limit=limit,
        )
        return [RelatedMessage(*row) for row in rows]

    async def _streams(self, prefix: str, after: str, within: Sequence[str] | None, limit: int) -> CataloguePage:
        rows = await self._rows(
            "catalogue_streams", **_name_range(prefix, after), **_category_ranges(within), limit=limit + 1
        )
        entries = [
            _entry(name, version or 0, position, type_, time)
            for name, version, position, type_, time in rows[:limit]
        ]
        return CataloguePage(entries, rows[limit][0] if len(rows) > limit else None)

    async def _categories(self, prefix: str, after: str, limit: int) -> CataloguePage:
        rows = await self._rows("catalogue_categories", **_name_range(prefix, after), limit=limit + 1)
        entries = [
            _entry(name, 0, position, type_, time)
            for name, position, type_, time, _, comes_later in rows[:limit]
            if not comes_later
        ]
        return CataloguePage(entries, rows[limit - 1][4] if len(rows) > limit else None)

    async def _named_categories(self, prefix: str, within: Sequence[str]) -> CataloguePage:
        """Return all of these: they are few."""
        names = sorted(name for name in within if name.startswith(prefix))
        rows = await self._rows("catalogue_named_categories", categories=names)
        entries = {name: _entry(name, 0, position, type_, time) for name, position, type_, time in rows}
        return CataloguePage([entries[name] for name in names], None)

    async def _types(
        self, prefix: str, after: str, within: Sequence[str] | None, limit: int, newest: int
    ) -> CataloguePage:
        hashes = None if within is None else list(map(category_hash, within))
        rows = await self._rows(
            "catalogue_types", **_name_range(prefix, after), hashes=hashes, newest=newest, limit=limit
        )
        shares = await self._shares(prefix) if within is None else {}
        found = {
            name: _entry(name, recent, position, name, time, shares.get(name))
            for name, recent, position, time in rows
        }
        older = {name: CatalogueEntry(name, share=share) for name, share in shares.items() if name not in found}
        return CataloguePage(sorted([*found.values(), *older.values()], key=lambda entry: entry.name), None)

    async def _shares(self, prefix: str) -> dict[str, float]:
        rows = await self._rows("common_types")
        return {name: share for name, share in rows if name.startswith(prefix)}

    async def _rows(self, name: str, **parameters: Any) -> Sequence[ResultRow]:
        return await self._executor.execute(self._statements.get(name), parameters)


def _entry(
    name: str,
    count: int,
    position: int | None,
    type: str | None,
    time: datetime | None,
    share: float | None = None,
) -> CatalogueEntry:
    return CatalogueEntry(name, count, position, None if position is None else type, time, share)


def _name_range(prefix: str, after: str) -> dict[str, str]:
    """Names that begin with a text, from another on; they are sorted by their bytes."""
    low = max(prefix, after, key=lambda text: text.encode(errors="replace"))
    return {"low": low, "high": prefix + _LAST_SUFFIX}


def _category_ranges(categories: Sequence[str] | None) -> dict[str, list[str]]:
    """The names that streams of some categories have: the category's own, and those that go on with a dash."""
    if categories is None:
        return {"lows": [""], "highs": [_LAST_SUFFIX]}
    low_and_high = [each for name in categories for each in ((name, f"{name}\x01"), (f"{name}-", f"{name}."))]
    return {"lows": [low for low, _ in low_and_high], "highs": [high for _, high in low_and_high]}
