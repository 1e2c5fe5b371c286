"""An entry of the navigation."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A page that one can go to from everywhere."""

    title: str
    path: str
    """Its segment below the console; empty for the first page."""
