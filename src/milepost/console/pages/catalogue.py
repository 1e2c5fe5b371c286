"""The catalogue pages: streams, categories and types, by the beginning of their names.

Nothing is counted: each page costs the same however long the log is.
"""

from collections.abc import Sequence

from litestar import get
from litestar.di import NamedDependency

from milepost.console.guard import needs
from milepost.console.request import ConsoleRequest, ConsoleResponse
from milepost.errors import InvalidMessage
from milepost.log.protocol import CatalogueEntry, CataloguePage
from milepost.names import MAX_NAME_BYTES
from milepost.server.access.permissions import TokenRole
from milepost.server.access.scope_guard import ScopeGuard, ScopeRule

NAMES_PER_PAGE = 50
"""Names of a page."""
NEWEST_MESSAGES = 20_000
"""Newest messages that are searched for types."""
MAX_TYPES = 500
"""Types that are shown; others are found by the beginning of their names."""


class LogCatalogue:
    """The names of streams, categories and types that are within a scope, found by their beginning."""

    def __init__(self, scope_guard: ScopeGuard) -> None:
        self._scope = scope_guard.scope
        self._log = scope_guard.mp.log

    async def streams(self, prefix: str, after: str) -> CataloguePage:
        """Return a page of streams in the order of their names."""
        return await self._log.catalogue(
            "stream", prefix=prefix, after=after, within=self._own_categories, limit=NAMES_PER_PAGE
        )

    async def categories(self, prefix: str, after: str) -> CataloguePage:
        """Return a page of categories in the order of their streams' names."""
        return await self._log.catalogue(
            "category", prefix=prefix, after=after, within=self._own_categories, limit=NAMES_PER_PAGE
        )

    async def types(self, prefix: str, category: str) -> Sequence[CatalogueEntry]:
        """Return the types of the newest messages; without a category also those common in the whole log."""
        within = self._scope.narrowed([category] if category else None, None)
        found = await self._log.catalogue(
            "type", prefix=prefix, within=within, limit=MAX_TYPES, newest=NEWEST_MESSAGES
        )
        return found.entries

    @property
    def _own_categories(self) -> list[str] | None:
        return None if self._scope.categories is None else list(self._scope.categories)


@get("/log/streams", opt=needs(TokenRole.READ, ScopeRule.ITSELF))
async def streams(console: NamedDependency[ConsoleRequest]) -> ConsoleResponse:
    """Show streams by name."""
    prefix, after = _query_name(console, "prefix"), _query_name(console, "after")
    names = await LogCatalogue(console.scope_guard).streams(prefix, after)
    return console.page("streams.html", prefix=prefix, after=after, names=names)


@get("/log/categories", opt=needs(TokenRole.READ, ScopeRule.ITSELF))
async def categories(console: NamedDependency[ConsoleRequest]) -> ConsoleResponse:
    """Show categories by name."""
    prefix, after = _query_name(console, "prefix"), _query_name(console, "after")
    names = await LogCatalogue(console.scope_guard).categories(prefix, after)
    return console.page("categories.html", prefix=prefix, after=after, names=names)


@get("/log/types", opt=needs(TokenRole.READ, ScopeRule.ITSELF))
async def types(console: NamedDependency[ConsoleRequest]) -> ConsoleResponse:
    """Show types by name."""
    prefix, category = _query_name(console, "prefix"), _query_name(console, "category")
    found = await LogCatalogue(console.scope_guard).types(prefix, category)
    return console.page("types.html", prefix=prefix, category=category, types=found, newest_count=NEWEST_MESSAGES)


def _query_name(console: ConsoleRequest, name: str) -> str:
    text = console.query.get(name, "")
    if len(text) > MAX_NAME_BYTES + 1:
        raise InvalidMessage(name, f"no name has more than {MAX_NAME_BYTES} bytes")
    return text


HANDLERS = (streams, categories, types)
