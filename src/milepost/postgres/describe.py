"""What a person is told of PostgreSQL: addresses without their secrets, and the driver's errors in one line.

Server and command use this module and no other one of the driver's.
"""

from typing import Literal, NamedTuple

import psycopg
from psycopg import errors as postgresql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from milepost.postgres.pool import BAD_ADDRESS_TEXT

_SECRETS = ("password", "sslpassword", "oauth_client_secret")


class DatabaseError(NamedTuple):
    """An error of the driver in words."""

    kind: Literal["address", "connection", "permission", "schema", "value", "other"]
    """What is wrong: the address, the connection or what it ends in, missing rights, a missing or other schema, or
    a value that PostgreSQL does not take."""
    text: str
    """One line, without the statement."""
    detail: str = ""


def database_error(error: BaseException) -> DatabaseError | None:
    """Return an error of the driver in words; None if it is not one of the driver's."""
    if not isinstance(error, psycopg.Error):
        return None
    if error.sqlstate is None and isinstance(error, psycopg.ProgrammingError):
        return DatabaseError("address", BAD_ADDRESS_TEXT)
    if error.sqlstate is None and isinstance(error, psycopg.OperationalError):
        return DatabaseError("connection", str(error).strip().partition("\n")[0])
    text = error.diag.message_primary or str(error).partition("\n")[0]
    detail = error.diag.message_detail or ""
    if isinstance(error, postgresql.InsufficientPrivilege):
        return DatabaseError("permission", text, detail)
    if isinstance(error, postgresql.UndefinedTable | postgresql.InvalidSchemaName | postgresql.UndefinedFunction):
        return DatabaseError("schema", text, detail)
    return DatabaseError("value" if isinstance(error, psycopg.DataError) else "other", text, detail)


def host_names(url: str) -> list[str]:
    """Return the hosts of an address; an empty name or a path stands for a socket of this machine."""
    return str(conninfo_to_dict(url).get("host") or "").split(",")


def hide_password(url: str) -> str:
    """Return an address with stars for what is secret in it."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        return "not an address that PostgreSQL understands"
    if "@" in str(parts.get("host") or ""):
        # Most likely the rest of a password, which must not be shown either.
        return "hidden: an @ in a password is written %40"
    secret = {name: "***" for name in _SECRETS if parts.get(name)}
    # Rebuilt from its parts, so that what is hidden does not depend on how it was written.
    return make_conninfo("", **{**parts, **secret}) if secret else url
