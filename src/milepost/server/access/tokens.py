"""The tokens of a log, as they are stored."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import psycopg

from milepost.errors import AlreadyExists, InvalidMessage
from milepost.log.codec import check_name
from milepost.log.database import Database
from milepost.log.statements import Statements
from milepost.server.access.role import Role
from milepost.server.access.scope import UNLIMITED, TokenScope
from milepost.server.access.secret import hashed, make_secret

LONGEST_LIFE = timedelta(days=36_525)
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
    roles: frozenset[Role]
    expires: datetime | None = None
    scope: TokenScope = UNLIMITED


class InForce(msgspec.Struct, frozen=True):
    """What opens something at a moment."""

    tokens: Sequence[StoredToken] = ()
    ended_sessions: frozenset[bytes] = frozenset()
    """Nonces of console sessions of these tokens that ended before their time."""


def _known(roles: Collection[str]) -> frozenset[Role]:
    """The roles that this program knows; a newer one may have stored others."""
    return frozenset(role for role in Role if role.value in roles)


def _scope(groups: Collection[str] | None, categories: Collection[str] | None) -> TokenScope:
    """The scope as it is stored."""
    return TokenScope(
        None if groups is None else frozenset(groups), None if categories is None else frozenset(categories)
    )


def _bad_expiry(expires: object) -> InvalidMessage:
    years = LONGEST_LIFE.days // 365
    return InvalidMessage(
        "expires", f"must be later than now and within {years} years, by the database's clock, got {expires}"
    )


class Tokens:
    """Makes, lists and revokes them."""

    def __init__(self, database: Database, schema: str) -> None:
        self._database = database
        self._statements = Statements(schema, "milepost.server.access")

    async def make(
        self,
        name: str,
        roles: Collection[Role],
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
            raise InvalidMessage("roles", f"at least one of {', '.join(Role)} is wanted")
        scope = TokenScope.of(groups, categories)
        life = expires if isinstance(expires, timedelta) else None
        if life is not None and life > LONGEST_LIFE:
            raise _bad_expiry(expires)
        secret = make_secret()
        await self._execute("revoke_expired_token", name=name)
        try:
            made = await self._execute(
                "make_token",
                name=name,
                hash=hashed(secret),
                roles=sorted(set(roles)),
                expires=expires if life is None else None,
                seconds=None if life is None else life.total_seconds(),
                longest=LONGEST_LIFE.days,
                groups=None if scope.groups is None else sorted(scope.groups),
                categories=None if scope.categories is None else sorted(scope.categories),
            )
        except psycopg.errors.UniqueViolation:
            raise AlreadyExists(f"there is a token {name!r} already: revoke it, or choose another name") from None
        if not made:
            raise _bad_expiry(expires)
        return secret

    async def all(self) -> list[TokenInfo]:
        """Every token that was ever made, by name, the newest last."""
        fields = TokenInfo.__struct_fields__
        rows = await self._execute("list_tokens")
        return [msgspec.convert(dict(zip(fields, row, strict=True)), TokenInfo) for row in rows]

    async def revoke(self, name: str) -> bool:
        """It opens nothing any more; False if none in force has this name."""
        check_name("name", name)
        return bool(await self._execute("revoke_token", name=name))

    async def in_force(self) -> InForce:
        """Return the tokens that are not revoked and have not expired, and which sessions of theirs have ended."""
        rows = await self._execute("tokens_in_force")
        return InForce(
            [
                StoredToken(number, name, digest, _known(roles), expires, _scope(groups, categories))
                for number, name, digest, roles, expires, groups, categories, _ in rows
            ],
            frozenset(nonce for *_, ended in rows for nonce in ended),
        )

    async def end_session(self, token: int, nonce: bytes, seconds: float) -> None:
        """End a console session of a token; that is remembered for so many seconds."""
        await self._execute("end_session", token=token, nonce=nonce, seconds=seconds)

    async def used(self, ids: Collection[int]) -> None:
        """Notes that these were used just now."""
        await self._execute("touch_tokens", ids=sorted(ids))

    async def _execute(self, statement: str, **parameters: Any) -> Sequence[Any]:
        return await self._database.execute(self._statements.get(statement), parameters)
