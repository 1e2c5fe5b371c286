"""The tokens of a log, as they are stored."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

import msgspec
import psycopg

from milepost.errors import AlreadyExists, InvalidMessage
from milepost.log.codec import check_name
from milepost.log.database import Database
from milepost.log.statements import Statements
from milepost.server.access.role import Role
from milepost.server.access.secret import hashed, make_secret


class TokenInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A token, without what it is made of."""

    name: str
    roles: tuple[str, ...]
    created: datetime
    last_used: datetime | None
    """To the minute or so; None: never."""
    revoked: datetime | None


class StoredToken(msgspec.Struct, frozen=True):
    """A token that is in force."""

    id: int
    name: str
    hash: bytes
    roles: frozenset[Role]


def _known(roles: Collection[str]) -> frozenset[Role]:
    """The roles that this program knows; a newer one may have stored others."""
    return frozenset(role for role in Role if role.value in roles)


class Tokens:
    """Makes, lists and revokes them."""

    def __init__(self, database: Database, schema: str) -> None:
        self._database = database
        self._statements = Statements(schema, "milepost.server.access")

    async def make(self, name: str, roles: Collection[Role]) -> str:
        """A new token; its text is told this once. `AlreadyExists` if one in force has the name."""
        check_name("name", name)
        if not roles:
            raise InvalidMessage("roles", f"at least one of {', '.join(Role)} is wanted")
        secret = make_secret()
        try:
            await self._execute("make_token", name=name, hash=hashed(secret), roles=sorted(set(roles)))
        except psycopg.errors.UniqueViolation:
            raise AlreadyExists(f"there is a token {name!r} already: revoke it, or choose another name") from None
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

    async def in_force(self) -> list[StoredToken]:
        """Those that were not revoked."""
        rows = await self._execute("tokens_in_force")
        return [StoredToken(number, name, digest, _known(roles)) for number, name, digest, roles in rows]

    async def used(self, ids: Collection[int]) -> None:
        """Notes that these were used just now."""
        await self._execute("touch_tokens", ids=sorted(ids))

    async def _execute(self, statement: str, **parameters: Any) -> Sequence[Any]:
        return await self._database.execute(self._statements.get(statement), parameters)
