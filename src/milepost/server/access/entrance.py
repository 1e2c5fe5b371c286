"""Lets requests in, or not."""

import asyncio
import math
from contextlib import suppress
from typing import Literal

from milepost.errors import Unavailable
from milepost.server.access.attempts import Attempts
from milepost.server.access.doorkeeper import Doorkeeper
from milepost.server.access.role import Role
from milepost.server.access.visitor import ANYBODY, Visitor
from milepost.server.asgi import Scope, client_of, header
from milepost.server.problems import FORBIDDEN, TOO_MANY_ATTEMPTS, UNAUTHENTICATED, Refused

Access = Literal["tokens", "local", "open"]
"""`tokens`: only with a token. `local`: without one, but only from this machine. `open`: somebody else looks."""

STAY_SECONDS = 3.0
"""Seconds between two looks at whether somebody who waits for an answer may still have it."""
CHALLENGE = {"www-authenticate": 'Bearer realm="milepost"'}


class Entrance:
    """Says who makes a request."""

    def __init__(self, access: Access, doorkeeper: Doorkeeper) -> None:
        self._access = access
        self._doorkeeper = doorkeeper
        self._attempts = Attempts()

    @property
    def asks(self) -> bool:
        """Whether a token is asked for."""
        return self._access == "tokens"

    async def visitor(self, scope: Scope, role: Role) -> Visitor:
        """Who it is; `Refused` if it is nobody who may do this."""
        if not self.asks:
            return ANYBODY
        visitor = await self.known(scope, _bearer(header(scope, b"authorization")))
        check_role(visitor, role)
        return visitor

    async def known(self, scope: Scope, secret: str | None) -> Visitor:
        """Whoever has this token; `Refused` if it is not in force, or somebody there has tried too often."""
        token = None if secret is None else await self._doorkeeper.find(secret)
        if token is not None:
            return Visitor(token.roles, token)
        address = client_of(scope)
        if wait := self._attempts.wait(address):
            seconds = str(math.ceil(wait))
            raise Refused(
                TOO_MANY_ATTEMPTS,
                f"Too many requests without a token in force came from {address}: wait {seconds} seconds",
                headers={"retry-after": seconds},
            )
        self._attempts.failed(address)
        raise Refused(
            UNAUTHENTICATED,
            "Send a header `authorization: Bearer …` with a token of `milepost token make`"
            if secret is None
            else "This token was never made, is revoked, or has expired: ask for another",
            headers=CHALLENGE,
        )

    async def may_stay(self, visitor: Visitor) -> bool:
        """Return True if somebody who was let in may go on: their token is in force, their session too."""
        return visitor.token is None or await self._doorkeeper.is_in_force(visitor.token, visitor.session)

    async def check_stay(self, visitor: Visitor) -> None:
        """Refuse somebody who was let in and may not go on."""
        if not await self.may_stay(visitor):
            raise Refused(UNAUTHENTICATED, "The token was revoked, or has expired: ask for another")

    async def refuse_in_time(self, visitor: Visitor) -> None:
        """Wait until somebody who was let in may not go on; then refuse them."""
        while True:
            await asyncio.sleep(STAY_SECONDS)
            # A database that is away for a moment revokes nothing.
            with suppress(Unavailable):
                await self.check_stay(visitor)


def check_role(visitor: Visitor, role: Role) -> None:
    """Refuses somebody who may not do this."""
    if role not in visitor.roles:
        has = ", ".join(sorted(visitor.roles)) or "none"
        raise Refused(FORBIDDEN, f"This takes a token with the role {role}; yours has {has}", role=role)


def _bearer(authorization: str | None) -> str | None:
    """The token in a header, if it is one."""
    scheme, _, secret = (authorization or "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" and secret.strip() else None
