"""Authenticate requests: tokens in force, as of a moment ago, and a limit on failed attempts."""

import asyncio
import hmac
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network, ip_address
from time import monotonic
from typing import Literal

from milepost.errors import Unavailable
from milepost.server.access.permissions import ALL_ROLES, UNLIMITED_SCOPE, TokenRole, TokenScope
from milepost.server.access.tokens import (
    MAX_SECRET_CHARACTERS,
    StoredToken,
    TokensInForce,
    TokenStore,
    hash_secret,
)
from milepost.server.http.asgi import Scope, client_address, header
from milepost.server.problems import FORBIDDEN, TOO_MANY_ATTEMPTS, UNAUTHENTICATED, RequestRefused

MAX_FAILED_ATTEMPTS = 10
"""Failures of an address within `FAILED_ATTEMPTS_SECONDS`."""
FAILED_ATTEMPTS_SECONDS = 60.0
"""Seconds."""
MAX_REMEMBERED_ADDRESSES = 10_000
"""How many are remembered; the ones that failed longest ago are forgotten first."""


class FailedAttempts:
    """Counts failures. Whoever presents a token that is known is not concerned, wherever it comes from."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def note_failure(self, address: str) -> None:
        """One more."""
        network = _address_network(address)
        self._failures[network] = [*self._recent(network), self._now()][-MAX_FAILED_ATTEMPTS:]
        self._failures.move_to_end(network)
        if len(self._failures) > MAX_REMEMBERED_ADDRESSES:
            self._failures.popitem(last=False)

    def seconds_blocked(self, address: str) -> float:
        """Seconds until this address is listened to again; 0.0: it is."""
        recent = self._recent(_address_network(address))
        return recent[0] + FAILED_ATTEMPTS_SECONDS - self._now() if len(recent) >= MAX_FAILED_ATTEMPTS else 0.0

    def _recent(self, network: str) -> list[float]:
        since = self._now() - FAILED_ATTEMPTS_SECONDS
        return [at for at in self._failures.get(network, ()) if at > since]


def _address_network(address: str) -> str:
    """Whoever has an address of IPv6 has a whole network of them."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Network((parsed, 64), strict=False))


@dataclass(frozen=True)
class Principal:
    """Somebody who was let in."""

    roles: frozenset[TokenRole]
    token: StoredToken | None = None
    """None: no token was asked for."""
    session: bytes | None = None
    """The nonce of a session of the console; None: the token itself was shown."""

    @property
    def scope(self) -> TokenScope:
        """What they may reach with their roles."""
        return UNLIMITED_SCOPE if self.token is None else self.token.scope


ANONYMOUS = Principal(ALL_ROLES)
"""Where no token is asked for."""


TOKENS_FRESH_SECONDS = 2.0
"""Seconds for which what is known of the tokens serves everybody."""
UNKNOWN_TOKEN_FRESH_SECONDS = 0.2
"""Seconds for which it serves somebody whose token is not known: it may have been made just now."""
TOKEN_USE_NOTE_SECONDS = 60.0
"""Seconds between two notes of which tokens were used."""


class TokenCache:
    """Finds the token of whoever knocks, with a statement every two seconds at the most while they are known."""

    def __init__(self, tokens: Callable[[], TokenStore]) -> None:
        self._tokens = tokens
        self._looking = asyncio.Lock()
        self._in_force = TokensInForce()
        self._looked = self._noted = float("-inf")
        self._used: set[int] = set()

    async def find(self, secret: str) -> StoredToken | None:
        """The token in force with this text; raises `Unavailable` where nobody can tell."""
        if len(secret) > MAX_SECRET_CHARACTERS:
            return None
        digest = hash_secret(secret)
        found = _token_of_hash((await self._known(TOKENS_FRESH_SECONDS)).tokens, digest)
        found = found or _token_of_hash((await self._known(UNKNOWN_TOKEN_FRESH_SECONDS)).tokens, digest)
        if found is not None:
            self._used.add(found.id)
        return found

    async def find_by_id(self, id: int) -> StoredToken | None:
        """The token in force with this number."""
        return next((token for token in (await self._known(TOKENS_FRESH_SECONDS)).tokens if token.id == id), None)

    async def is_in_force(self, token: StoredToken, session: bytes | None = None) -> bool:
        """Return True if a token that was found before still is one, with the roles it had.

        With the nonce of a session of that token: if that has not ended either.
        """
        known = await self._known(TOKENS_FRESH_SECONDS)
        return token in known.tokens and session not in known.ended_sessions

    async def end_session(self, token: StoredToken, session: bytes, seconds: float) -> None:
        """End a session: here at once, on other servers when they look next. Remember that for so many seconds."""
        # Whoever looks meanwhile may not see it yet, and would keep what they saw.
        async with self._looking:
            await self._tokens().end_session(token.id, session, seconds)
            self._looked = float("-inf")

    async def _known(self, age: float) -> TokensInForce:
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
        if self._used and monotonic() - self._noted > TOKEN_USE_NOTE_SECONDS:
            used, self._used = self._used, set()
            self._noted = monotonic()
            await self._tokens().used(used)


def _token_of_hash(tokens: Sequence[StoredToken], digest: bytes) -> StoredToken | None:
    found = None
    # All of them are compared, each in constant time: how long it takes says nothing about any.
    for token in tokens:
        if hmac.compare_digest(token.hash, digest):
            found = token
    return found


AccessMode = Literal["tokens", "local", "open"]
"""`tokens`: only with a token. `local`: without one, but only from this machine. `open`: somebody else looks."""

ACCESS_RECHECK_SECONDS = 3.0
"""Seconds between two looks at whether somebody who waits for an answer may still have it."""
BEARER_CHALLENGE = {"www-authenticate": 'Bearer realm="milepost"'}


class Authenticator:
    """Says who makes a request."""

    def __init__(self, access: AccessMode, token_cache: TokenCache) -> None:
        self._access = access
        self._token_cache = token_cache
        self._attempts = FailedAttempts()

    @property
    def asks_for_tokens(self) -> bool:
        """Whether a token is asked for."""
        return self._access == "tokens"

    async def authenticate(self, scope: Scope, role: TokenRole) -> Principal:
        """Who it is; `RequestRefused` if it is nobody who may do this."""
        if not self.asks_for_tokens:
            return ANONYMOUS
        principal = await self.authenticate_secret(scope, _bearer_secret(header(scope, b"authorization")))
        check_role(principal, role)
        return principal

    async def authenticate_secret(self, scope: Scope, secret: str | None) -> Principal:
        """Whoever has this token; `RequestRefused` if it is not in force, or somebody there has tried too
        often."""
        token = None if secret is None else await self._token_cache.find(secret)
        if token is not None:
            return Principal(token.roles, token)
        address = client_address(scope)
        if wait := self._attempts.seconds_blocked(address):
            seconds = str(math.ceil(wait))
            raise RequestRefused(
                TOO_MANY_ATTEMPTS,
                f"Too many requests without a token in force came from {address}: wait {seconds} seconds",
                headers={"retry-after": seconds},
            )
        self._attempts.note_failure(address)
        raise RequestRefused(
            UNAUTHENTICATED,
            "Send a header `authorization: Bearer …` with a token of `milepost token make`"
            if secret is None
            else "This token was never made, is revoked, or has expired: ask for another",
            headers=BEARER_CHALLENGE,
        )

    async def is_still_allowed(self, principal: Principal) -> bool:
        """Return True if somebody who was let in may go on: their token is in force, their session too."""
        return principal.token is None or await self._token_cache.is_in_force(principal.token, principal.session)

    async def check_still_allowed(self, principal: Principal) -> None:
        """Refuse somebody who was let in and may not go on."""
        if not await self.is_still_allowed(principal):
            raise RequestRefused(UNAUTHENTICATED, "The token was revoked, or has expired: ask for another")

    async def refuse_when_revoked(self, principal: Principal) -> None:
        """Wait until somebody who was let in may not go on; then refuse them."""
        while True:
            await asyncio.sleep(ACCESS_RECHECK_SECONDS)
            # A database that is away for a moment revokes nothing.
            with suppress(Unavailable):
                await self.check_still_allowed(principal)


def check_role(principal: Principal, role: TokenRole) -> None:
    """Refuses somebody who may not do this."""
    if role not in principal.roles:
        has = ", ".join(sorted(principal.roles)) or "none"
        raise RequestRefused(FORBIDDEN, f"This takes a token with the role {role}; yours has {has}", role=role)


def _bearer_secret(authorization: str | None) -> str | None:
    """The token in a header, if it is one."""
    scheme, _, secret = (authorization or "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" and secret.strip() else None
