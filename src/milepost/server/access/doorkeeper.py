"""Knows the tokens in force, as of a moment ago: a revocation anywhere takes effect here within seconds."""

import asyncio
import hmac
from collections.abc import Callable, Sequence
from time import monotonic

from milepost.server.access.secret import LONGEST, hashed
from milepost.server.access.tokens import InForce, StoredToken, Tokens

FRESH = 2.0
"""Seconds for which what is known of the tokens serves everybody."""
FRESH_ENOUGH = 0.2
"""Seconds for which it serves somebody whose token is not known: it may have been made just now."""
NOTED = 60.0
"""Seconds between two notes of which tokens were used."""


class Doorkeeper:
    """Finds the token of whoever knocks, with a statement every two seconds at the most while they are known."""

    def __init__(self, tokens: Callable[[], Tokens]) -> None:
        self._tokens = tokens
        self._looking = asyncio.Lock()
        self._in_force = InForce()
        self._looked = self._noted = float("-inf")
        self._used: set[int] = set()

    async def find(self, secret: str) -> StoredToken | None:
        """The token in force with this text; raises `Unavailable` where nobody can tell."""
        if len(secret) > LONGEST:
            return None
        digest = hashed(secret)
        found = _among((await self._known(FRESH)).tokens, digest)
        found = found or _among((await self._known(FRESH_ENOUGH)).tokens, digest)
        if found is not None:
            self._used.add(found.id)
        return found

    async def numbered(self, id: int) -> StoredToken | None:
        """The token in force with this number."""
        return next((token for token in (await self._known(FRESH)).tokens if token.id == id), None)

    async def is_in_force(self, token: StoredToken, session: bytes | None = None) -> bool:
        """Return True if a token that was found before still is one, with the roles it had.

        With the nonce of a session of that token: if that has not ended either.
        """
        known = await self._known(FRESH)
        return token in known.tokens and session not in known.ended_sessions

    async def end_session(self, token: StoredToken, session: bytes, seconds: float) -> None:
        """End a session: here at once, on other servers when they look next. Remember that for so many seconds."""
        # Whoever looks meanwhile may not see it yet, and would keep what they saw.
        async with self._looking:
            await self._tokens().end_session(token.id, session, seconds)
            self._looked = float("-inf")

    async def _known(self, age: float) -> InForce:
        if monotonic() - self._looked <= age:
            return self._in_force
        async with self._looking:
            if monotonic() - self._looked > age:
                # A revocation that commits while it is asked counts from the question on, not from the answer.
                asked = monotonic()
                self._in_force = await self._tokens().in_force()
                self._looked = asked
                await self._note()
        return self._in_force

    async def _note(self) -> None:
        if self._used and monotonic() - self._noted > NOTED:
            used, self._used = self._used, set()
            self._noted = monotonic()
            await self._tokens().used(used)


def _among(tokens: Sequence[StoredToken], digest: bytes) -> StoredToken | None:
    found = None
    # All of them are compared, each in constant time: how long it takes says nothing about any.
    for token in tokens:
        if hmac.compare_digest(token.hash, digest):
            found = token
    return found
