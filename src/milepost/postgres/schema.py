"""The schema's migrations: numbered, safe from many processes at once, printable without a database."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from milepost.errors import SchemaMismatch
from milepost.names import MigrateMode
from milepost.postgres.pool import Connection
from milepost.postgres.statements import Statements, in_schema

_OLDEST = re.compile(r"^-- oldest: (\d+)$", re.MULTILINE)
# "mile" in ASCII and a number of its own: the advisory lock that keeps migrations apart.
_MIGRATION_LOCK_KEY = 0x6D696C65

_BOOKKEEPING = """
create schema if not exists :"schema";
create table if not exists :"schema".migrations (
    number integer primary key,
    name text not null,
    oldest integer not null,
    program text not null,
    applied timestamptz not null default clock_timestamp()
);
"""
_MIGRATIONS_EXIST = """
select from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = %s and c.relname = 'migrations'
"""
_RECORD_MIGRATION = """
insert into :"schema".migrations (number, name, oldest, program)
values ({number}, '{name}', {oldest}, '{program}');
"""


@dataclass(frozen=True)
class Migration:
    """One step of the schema. `oldest` is the number that a program must know to run on it."""

    number: int
    name: str
    oldest: int
    text: str

    def sql(self, schema: str) -> str:
        """The step and its entry in the list of migrations."""
        record = _RECORD_MIGRATION.format(
            number=self.number, name=self.name, oldest=self.oldest, program=version("milepost")
        )
        return in_schema(self.text + record, schema)


def _load_migrations() -> list[Migration]:
    """The migrations, each a folder `NUMBER_NAME` with files that are run in the order of their names."""
    found = []
    for folder in sorted((files("milepost.postgres") / "migrations").iterdir(), key=lambda path: path.name):
        number, _, name = folder.name.partition("_")
        if not number.isdigit():
            continue
        parts = sorted(
            (path for path in folder.iterdir() if path.name.endswith(".sql")), key=lambda path: path.name
        )
        text = "\n".join(path.read_text() for path in parts)
        oldest = _OLDEST.search(text)
        if oldest is None:
            raise ValueError(f"{folder.name} does not say which is the oldest program that may run on it")
        found.append(Migration(int(number), name, int(oldest[1]), text))
    return found


MIGRATIONS: tuple[Migration, ...] = tuple(_load_migrations())
NEWEST_MIGRATION_NUMBER = MIGRATIONS[-1].number
"""The newest migration that this program knows."""


@dataclass(frozen=True)
class SchemaStatus:
    """Which migrations a database has, and which program it asks for."""

    number: int
    oldest: int
    applied: tuple[dict[str, Any], ...]

    @property
    def pending(self) -> list[Migration]:
        """What this program would add."""
        return [migration for migration in MIGRATIONS if migration.number > self.number]

    @property
    def is_newer(self) -> bool:
        """Whether it asks for a newer program than this one."""
        return self.oldest > NEWEST_MIGRATION_NUMBER

    def check(self, schema: str) -> None:
        """Raises `SchemaMismatch` where this program must not run, and says what to do."""
        if self.is_newer:
            raise SchemaMismatch(
                f"schema {schema!r} is at {self.number} and asks for a program that knows at least {self.oldest}; "
                f"this one knows {NEWEST_MIGRATION_NUMBER}: install a newer milepost"
            )
        if self.number < NEWEST_MIGRATION_NUMBER:
            raise SchemaMismatch(
                f"schema {schema!r} is at {self.number} and this program needs {NEWEST_MIGRATION_NUMBER}: "
                "run `milepost schema migrate`"
            )


def printable_sql(schema: str, after: int = 0) -> str:
    """The SQL of all migrations after a number, in one transaction, for psql or a person."""
    pending = [migration for migration in MIGRATIONS if migration.number > after]
    return "\n".join(["begin;", _bookkeeping(schema), *(m.sql(schema) for m in pending), "commit;\n"])


async def status(connection: Connection, schema: str) -> SchemaStatus:
    """What the database has."""
    # Asked of the catalog's rows: a name looked up by the server may come from a cache that is older than the
    # lock that migrations wait for.
    table = await connection.execute(_MIGRATIONS_EXIST, [schema])
    if await table.fetchone() is None:
        return SchemaStatus(0, 0, ())
    query = in_schema(
        'select number, name, oldest, program, applied from :"schema".migrations order by number',
        schema,
    )
    # In binary: the driver reads timestamps as text in one style only.
    cursor = await connection.execute(query, binary=True)
    rows = await cursor.fetchall()
    names = ("number", "name", "oldest", "program", "applied")
    applied = tuple(dict(zip(names, row, strict=True)) for row in rows)
    return SchemaStatus(
        max((entry["number"] for entry in applied), default=0),
        max((entry["oldest"] for entry in applied), default=0),
        applied,
    )


async def migrate(connection: Connection, schema: str) -> list[Migration]:
    """Brings the schema to what this program needs; returns what it added."""
    found = await status(connection, schema)
    if not found.pending:
        await _check(connection, schema, found)
        return []
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock(%s, hashtext(%s))", [_MIGRATION_LOCK_KEY, schema])
        found = await status(connection, schema)
        await _apply_migrations(connection, schema, found.pending)
        await check(connection, schema)
    return found.pending


async def _apply_migrations(connection: Connection, schema: str, pending: Iterable[Migration]) -> None:
    await _check_encoding(connection)
    await connection.execute(_bookkeeping(schema))
    for migration in pending:
        await connection.execute(migration.sql(schema))


async def problems(connection: Connection, schema: str) -> list[str]:
    """What the log relies on and does not find, a line for a person each."""
    cursor = await connection.execute(Statements(schema, "milepost.postgres").get("log_problems"), {})
    return [row[0] for row in await cursor.fetchall()]


async def check(connection: Connection, schema: str) -> None:
    """Raise `SchemaMismatch` unless this program can rely on the schema."""
    await _check(connection, schema, await status(connection, schema))


async def _check(connection: Connection, schema: str, found: SchemaStatus) -> None:
    found.check(schema)
    if missing := await problems(connection, schema):
        raise SchemaMismatch("; ".join(missing))


async def prepare(connection: Connection, schema: str, mode: MigrateMode) -> None:
    """What is to be done about the schema when a program opens it."""
    if mode == "auto":
        await migrate(connection, schema)
    elif mode == "check":
        await check(connection, schema)


async def _check_encoding(connection: Connection) -> None:
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise SchemaMismatch(f"the database has encoding {encoding}: Milepost needs one with UTF8")


def _bookkeeping(schema: str) -> str:
    return in_schema(_BOOKKEEPING, schema)
