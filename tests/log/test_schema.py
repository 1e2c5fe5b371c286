"""The schema: numbered migrations, safe from many processes at once, and a word to programs that do not fit."""

import asyncio
import subprocess
import sys
from typing import Any

import psycopg
import pytest

from milepost import Milepost, NewMessage, SchemaMismatch
from milepost.postgres import schema as schemas
from schemas import SECOND
from support import Connection, MakeMilepost, qualified


@pytest.fixture(params=["embedded", pytest.param("postgresql_15", marks=pytest.mark.shard("oldest"))])
def database_url(request: pytest.FixtureRequest) -> str:
    """Both servers: what is tested here rests on what each of them does."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def schema(unused_schema: str) -> str:
    """A schema that is not there yet."""
    return unused_schema


async def test_several_processes_start_at_once(make_mp: MakeMilepost, database_url: str, schema: str) -> None:
    await start_at_once(make_mp, database_url, schema, processes=2)


@pytest.mark.shard("processes")
async def test_fifty_processes_start_at_once(make_mp: MakeMilepost, database_url: str, schema: str) -> None:
    """Eight real ones stand for seven each."""
    await start_at_once(make_mp, database_url, schema, processes=8)


async def start_at_once(make_mp: MakeMilepost, database_url: str, schema: str, *, processes: int) -> None:
    """Real processes with seven programs each: every one of them opens, and each migration is applied once."""
    program = (
        "import asyncio\n"
        "from milepost import Milepost, NewMessage\n"
        "async def one():\n"
        f"    async with Milepost({database_url!r}, schema={schema!r}, pool_size=1) as mp:\n"
        "        await mp.append('a-1', NewMessage('t'))\n"
        "async def main(): await asyncio.gather(*(one() for _ in range(7)))\n"
        "asyncio.run(main())\n"
    )
    started = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(processes)]
    assert [await asyncio.to_thread(process.wait) for process in started] == [0] * processes
    async with make_mp() as mp:
        assert await mp.last("a-1") == 7 * processes
        async with mp.log.database.connection() as connection:
            found = await schemas.status(connection, schema)
    assert [entry["number"] for entry in found.applied] == [m.number for m in schemas.MIGRATIONS]


async def test_check_and_off(make_mp: MakeMilepost) -> None:
    with pytest.raises(SchemaMismatch, match="milepost schema migrate"):
        await make_mp(migrate="check").__aenter__()
    async with make_mp(migrate="off") as mp:
        with pytest.raises(psycopg.errors.InvalidSchemaName):
            await mp.append("a-1", NewMessage("t"))
    async with make_mp():
        pass
    async with make_mp(migrate="check") as mp:
        await mp.append("a-1", NewMessage("t"))


async def record(mp: Milepost, number: int, oldest: int) -> None:
    """Makes the schema one that a newer program has migrated."""
    statement = qualified("insert into {}.migrations values (%(number)s, 'future', %(oldest)s, '9.9')", mp)
    await mp.log.database.execute(statement, {"number": number, "oldest": oldest})


@pytest.mark.parametrize("migrate", ["auto", "check"])
async def test_a_newer_schema_that_allows_this_program(mp: Milepost, make_mp: MakeMilepost, migrate: str) -> None:
    """A rolling deploy, and back: old workers go on while new ones have migrated."""
    await record(mp, schemas.NEWEST_MIGRATION_NUMBER + 1, schemas.NEWEST_MIGRATION_NUMBER)
    async with make_mp(migrate=migrate) as older:
        await older.append("a-1", NewMessage("t"))


@pytest.mark.parametrize("migrate", ["auto", "check"])
async def test_a_newer_schema_that_does_not(mp: Milepost, make_mp: MakeMilepost, migrate: str) -> None:
    await record(mp, schemas.NEWEST_MIGRATION_NUMBER + 2, schemas.NEWEST_MIGRATION_NUMBER + 1)
    with pytest.raises(SchemaMismatch, match="install a newer milepost"):
        await make_mp(migrate=migrate).__aenter__()


async def test_what_is_printed_can_be_run(database_url: str, schema: str, make_mp: MakeMilepost) -> None:
    """By psql or anything else, without this program; the program then finds nothing to do."""
    async with await Connection.connect(database_url, autocommit=True) as connection:
        text: Any = schemas.printable_sql(schema)
        await connection.execute(text)
        assert await schemas.migrate(connection, schema) == []
    async with make_mp(migrate="check") as mp:
        assert (await mp.append("a-1", NewMessage("t"))).version == 1


async def test_a_failed_migration_leaves_nothing(
    database_url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = schemas.Migration(schemas.NEWEST_MIGRATION_NUMBER + 1, "broken", 1, "select 1/0;")
    monkeypatch.setattr(schemas, "MIGRATIONS", (*schemas.MIGRATIONS, broken))
    async with await Connection.connect(database_url, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            await schemas.migrate(connection, schema)
        assert (await schemas.status(connection, schema)).number == 0


async def test_a_log_has_an_identity_that_stays(mp: Milepost, make_mp: MakeMilepost) -> None:
    identity = await mp.log.identity()
    async with make_mp() as again, make_mp(schema=f"{mp.settings['schema'].value}_2") as other:
        assert await again.log.identity() == identity
        assert await other.log.identity() != identity
        await other.log.database.execute(qualified("drop schema {} cascade", other), {})


async def test_an_upgrade_adds_what_is_missing_and_keeps_what_is_there(
    make_mp: MakeMilepost, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_mp() as mp:
        await mp.append("a-1", NewMessage("t"))
    monkeypatch.setattr(schemas, "MIGRATIONS", (*schemas.MIGRATIONS, SECOND))
    monkeypatch.setattr(schemas, "NEWEST_MIGRATION_NUMBER", SECOND.number)
    with pytest.raises(SchemaMismatch, match=f"at {SECOND.number - 1} and this program needs {SECOND.number}"):
        await make_mp(migrate="check").__aenter__()
    async with make_mp() as mp:
        assert await mp.last("a-1") == 1
        assert list(await mp.log.database.execute(qualified("select * from {}.second", mp), {})) == []
        async with mp.log.database.connection() as connection:
            applied = (await schemas.status(connection, schema)).applied
    assert [entry["name"] for entry in applied] == ["milepost", "second"]


async def test_two_schemas_in_one_database_know_nothing_of_each_other(mp: Milepost, database_url: str) -> None:
    await mp.append("a-1", NewMessage("t"))
    name = f"{mp.settings['schema'].value}_2"
    async with Milepost(database_url, schema=name) as second:
        assert await second.head() == 0
        await second.append("a-1", [NewMessage("t")] * 3)
        assert await mp.head() == 1
        await second.log.database.execute(qualified("drop schema {} cascade", second), {})
