"""Tokens: made, listed, revoked, and stored as a hash of their secret."""

import hashlib
import secrets
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

import msgspec

from milepost.app import Milepost
from milepost.errors import InvalidMessage
from milepost.log.codec import check_name
from milepost.server.access.permissions import UNLIMITED_SCOPE, TokenRole, TokenScope

TOKEN_BEGINNING = "mp_"  # noqa: S105 - no secret
"""What every token begins with, so that one is recognised where it must not be: in a log, in a repository."""
MAX_SECRET_CHARACTERS = 200
"""Characters; what is longer is no token, and not worth hashing."""


def make_secret() -> str:
    """A new one."""
    return TOKEN_BEGINNING + secrets.token_urlsafe(32)


def hash_secret(secret: str) -> bytes:
    """What is stored of it. It has 256 random bits: nothing slower than SHA-256 is needed."""
    return hashlib.sha256(secret.encode()).digest()


MAX_TOKEN_LIFE_TIME = timedelta(days=36_525)
"""A token that is to last longer has no expiry."""


class TokenInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A token, without what it is made of."""

    name: str
    roles: tuple[str, ...]
    groups: tuple[str, ...] | None
    """Of which subscriptions; None: of all groups."""
    categories: tuple[str, ...] | None
    """Of which streams; None: of all categories."""
    created: datetime
    expires: datetime | None
    """From then on it opens nothing, by the database's clock; None: it does not expire."""
    last_used: datetime | None
    """To the minute or so; None: never."""
    revoked: datetime | None
    in_force: bool
    """True if it opens something: it is not revoked and has not expired."""


class StoredToken(msgspec.Struct, frozen=True):
    """A token that is in force."""

    id: int
    name: str
    hash: bytes
    roles: frozenset[TokenRole]
    expires: datetime | None = None
    scope: TokenScope = UNLIMITED_SCOPE


class TokensInForce(msgspec.Struct, frozen=True):
    """What opens something at a moment."""

    tokens: Sequence[StoredToken] = ()
    ended_sessions: frozenset[bytes] = frozenset()
    """Nonces of console sessions of these tokens that ended before their time."""


def _known_roles(roles: Collection[str]) -> frozenset[TokenRole]:
    """The roles that this program knows; a newer one may have stored others."""
    return frozenset(role for role in TokenRole if role.value in roles)


def _stored_scope(groups: Collection[str] | None, categories: Collection[str] | None) -> TokenScope:
    """The scope as it is stored."""
    return TokenScope(
        None if groups is None else frozenset(groups), None if categories is None else frozenset(categories)
    )


def _expiry_error(expires: object) -> InvalidMessage:
    years = MAX_TOKEN_LIFE_TIME.days // 365
    return InvalidMessage(
        "expires", f"must be later than now and within {years} years, by the database's clock, got {expires}"
    )


class TokenStore:
    """Makes, lists and revokes them."""

    def __init__(self, mp: Milepost) -> None:
        self._table = mp.log.tokens

    async def make(
        self,
        name: str,
        roles: Collection[TokenRole],
        *,
        expires: datetime | timedelta | None = None,
        groups: Collection[str] | None = None,
        categories: Collection[str] | None = None,
    ) -> str:
        """Make a token and return its text, which is told this once. `AlreadyExists` if one in force has the name.

        Args:
            name: What the token is for.
            roles: What it allows.
            expires: When it ends, or after which time, by the database's clock. Defaults to never.
            groups: The groups whose subscriptions it is for. Defaults to all.
            categories: The categories whose streams it is for. Defaults to all.
        """
        check_name("name", name)
        if not roles:
            raise InvalidMessage("roles", f"at least one of {', '.join(TokenRole)} is wanted")
        scope = TokenScope.of(groups, categories)
        life = expires if isinstance(expires, timedelta) else None
        if life is not None and life > MAX_TOKEN_LIFE_TIME:
            raise _expiry_error(expires)
        secret = make_secret()
        made = await self._table.add(
            name,
            hash_secret(secret),
            sorted(set(roles)),
            expires=None if isinstance(expires, timedelta) else expires,
            seconds=None if life is None else life.total_seconds(),
            max_days=MAX_TOKEN_LIFE_TIME.days,
            groups=None if scope.groups is None else sorted(scope.groups),
            categories=None if scope.categories is None else sorted(scope.categories),
        )
        if not made:
            raise _expiry_error(expires)
        return secret

    async def all(self) -> list[TokenInfo]:
        """Every token that was ever made, by name, the newest last."""
        return [msgspec.convert(row, TokenInfo) for row in await self._table.all()]

    async def revoke(self, name: str) -> bool:
        """It opens nothing any more; False if none in force has this name."""
        check_name("name", name)
        return await self._table.revoke(name)

    async def in_force(self) -> TokensInForce:
        """Return the tokens that are not revoked and have not expired, and which sessions of theirs have ended."""
        rows = await self._table.in_force()
        return TokensInForce(
            [
                StoredToken(
                    row["id"],
                    row["name"],
                    row["hash"],
                    _known_roles(row["roles"]),
                    row["expires"],
                    _stored_scope(row["groups"], row["categories"]),
                )
                for row in rows
            ],
            frozenset(nonce for row in rows for nonce in row["ended_sessions"]),
        )

    async def end_session(self, token: int, nonce: bytes, seconds: float) -> None:
        """End a console session of a token; that is remembered for so many seconds."""
        await self._table.end_session(token, nonce, seconds)

    async def used(self, ids: Collection[int]) -> None:
        """Notes that these were used just now."""
        await self._table.touch(ids)
