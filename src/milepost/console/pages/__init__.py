"""The pages of the console: one module each, with its handlers."""

from collections.abc import Sequence
from types import ModuleType
from typing import Final

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
from milepost.console.request import NavItem

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
"""Each has `HANDLERS`, and a `NAV_ITEM` if it stands in the navigation, in this order."""
NAV_ITEMS: Final[Sequence[NavItem]] = tuple(page.NAV_ITEM for page in PAGES if hasattr(page, "NAV_ITEM"))
