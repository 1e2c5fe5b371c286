"""Whoever makes a request, and what they may do."""

from dataclasses import dataclass

from milepost.server.access.role import EVERY_ROLE, Role
from milepost.server.access.tokens import StoredToken


@dataclass(frozen=True)
class Visitor:
    """Somebody who was let in."""

    roles: frozenset[Role]
    token: StoredToken | None = None
    """None: no token was asked for."""


ANYBODY = Visitor(EVERY_ROLE)
"""Where no token is asked for."""
