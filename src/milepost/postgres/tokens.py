"""The tables of the server's tokens, which are in the schema of the log."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

import psycopg

from milepost.errors import AlreadyExists
from milepost.postgres.pool import Database
from milepost.postgres.statements import Statements

_LISTED_COLUMNS = (
    "name",
    "roles",
    "groups",
    "categories",
    "created",
    "expires",
    "last_used",
    "revoked",
    "in_force",
)
_IN_FORCE_COLUMNS = ("id", "name", "hash", "roles", "expires", "groups", "categories", "ended_sessions")


class PostgresTokens:
    """Stores tokens as hashes of their secrets; the server says what they mean. Times are the database's."""

    def __init__(self, database: Database, schema: str) -> None:
        self._database = database
        self._statements = Statements(schema, "milepost.postgres")

    async def add(
        self,
        name: str,
        hash: bytes,
        roles: Sequence[str],
        *,
        expires: datetime | None,
        seconds: float | None,
        max_days: int,
        groups: Sequence[str] | None,
        categories: Sequence[str] | None,
    ) -> bool:
        """Store a token that expires at a time, or after so many seconds; with neither it lasts.

        Return False, and store nothing, if it expires before now or in more than `max_days` days. Raises
        `AlreadyExists` if one in force has the name.
        """
        await self._rows("revoke_expired_token", name=name)
        try:
            made = await self._rows(
                "make_token",
                name=name,
                hash=hash,
                roles=roles,
                expires=expires,
                seconds=seconds,
                longest=max_days,
                groups=groups,
                categories=categories,
            )
        except psycopg.errors.UniqueViolation:
            raise AlreadyExists(f"there is a token {name!r} already: revoke it, or choose another name") from None
        return bool(made)

    async def all(self) -> list[dict[str, Any]]:
        """Return the columns of every token that was ever made, by name, the newest last."""
        return [dict(zip(_LISTED_COLUMNS, row, strict=True)) for row in await self._rows("list_tokens")]

    async def in_force(self) -> list[dict[str, Any]]:
        """Return the columns of the tokens that are not revoked and have not expired.

        `ended_sessions` are the nonces of their console sessions that ended before their time.
        """
        return [dict(zip(_IN_FORCE_COLUMNS, row, strict=True)) for row in await self._rows("tokens_in_force")]

    async def revoke(self, name: str) -> bool:
        """Revoke the token in force that has this name. Return False if there is none."""
        return bool(await self._rows("revoke_token", name=name))

    async def touch(self, ids: Collection[int]) -> None:
        """Note that these were used just now."""
        await self._rows("touch_tokens", ids=sorted(ids))

    async def end_session(self, token: int, nonce: bytes, seconds: float) -> None:
        """Remember for so many seconds that a console session of a token has ended."""
        await self._rows("end_session", token=token, nonce=nonce, seconds=seconds)

    async def _rows(self, statement: str, **parameters: Any) -> Sequence[Any]:
        return await self._database.execute(self._statements.get(statement), parameters)
