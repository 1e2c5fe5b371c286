"""An entry of the navigation."""

from dataclasses import dataclass

from milepost.server.access.role import Role


@dataclass(frozen=True)
class Entry:
    """A page that one can go to from everywhere."""

    title: str
    path: str
    """Its segment below the console; empty for the first page."""
    role: Role | None = None
    """Whom it is shown to. Defaults to everybody."""
