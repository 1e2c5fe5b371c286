"""Every page: a module each, with its handlers."""

from collections.abc import Sequence
from types import ModuleType
from typing import Final

from milepost.console.entry import Entry
from milepost.console.pages import (
    append,
    catalogue,
    files,
    log,
    login,
    message,
    overview,
    parked,
    playground,
    subscription,
    tokens,
    trace,
)

PAGES: Final[Sequence[ModuleType]] = (
    overview,
    subscription,
    parked,
    trace,
    log,
    message,
    catalogue,
    append,
    playground,
    tokens,
    login,
    files,
)
"""Each has `HANDLERS`, and an `ENTRY` if it stands in the navigation; they stand in this order."""
ENTRIES: Final[Sequence[Entry]] = tuple(page.ENTRY for page in PAGES if hasattr(page, "ENTRY"))
