"""Whoever makes a request, and what they may do."""

from dataclasses import dataclass

from milepost.server.access.role import EVERY_ROLE, Role
from milepost.server.access.scope import UNLIMITED, TokenScope
from milepost.server.access.tokens import StoredToken


@dataclass(frozen=True)
class Visitor:
    """Somebody who was let in."""

    roles: frozenset[Role]
    token: StoredToken | None = None
    """None: no token was asked for."""
    session: bytes | None = None
    """The nonce of a session of the console; None: the token itself was shown."""

    @property
    def scope(self) -> TokenScope:
        """What they may reach with their roles."""
        return UNLIMITED if self.token is None else self.token.scope


ANYBODY = Visitor(EVERY_ROLE)
"""Where no token is asked for."""
