"""A reader, an appender, a worker and an operator: each does its work, and nothing else."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.errors import CheckViolation, InsufficientPrivilege
from psycopg.types.json import Jsonb

from milepost import Message, Milepost, NewMessage, Transaction, WrongVersion, by_property
from milepost.postgres import roles
from roles import User
from support import MakeMilepost

Connection = psycopg.Connection[Any]
Connect = Callable[[str], Connection]


def nested(levels: int) -> list[Any]:
    """Lists in each other."""
    made: list[Any] = []
    for _ in range(levels - 1):
        made = [made]
    return made


FORGERIES = (
    "insert into messages (stream_id, version, category_hash, bucket, size, id, type, data, properties, metadata) "
    "values (1, 99, 1, 1, 1, gen_random_uuid(), 't', '1', '{}', '{}')",
    "select setval('messages_position_seq', 1)",
    "select nextval('messages_position_seq')",
    "update messages set data = '2'",
    "delete from messages",
    "lock table messages in row exclusive mode",
    "update streams set name = 'other-1'",
    "insert into streams (name, category, category_hash, bucket) values ('a-9', 'a', 1, 1)",
    "select open_stream('a-9')",
    "update identity set log = gen_random_uuid()",
    "create table own (n integer)",
)
"""What would change messages or streams, or draw positions. It is for the owner of the schema alone."""
READINGS = (
    "select * from messages",
    "select data from messages limit 1",
    "select * from streams",
    "select * from deliveries",
    "select last_value from messages_position_seq",
    "select position_before(now())",
    "select life()",
)
TOKENS = (
    "select * from tokens",
    "insert into tokens (name, hash, roles) values ('own', 'x', '{operate}')",
    "update tokens set roles = '{operate}'",
    "select * from ended_sessions",
    "delete from ended_sessions",
)


@pytest.fixture
def connect(user: User, schema: str) -> Iterator[Connect]:
    """Return a function that connects as a new user with a role, to whom names need no schema."""
    opened = []

    def connect(role: str) -> Connection:
        connection = psycopg.connect(user(role), autocommit=True)
        connection.execute(sql.SQL("set search_path = {}").format(sql.Identifier(schema)))
        opened.append(connection)
        return connection

    yield connect
    for connection in opened:
        connection.close()


def is_for_others(connection: Connection, *statements: str) -> None:
    """Assert that each of these needs rights that this user lacks."""
    for statement in statements:
        with pytest.raises(InsufficientPrivilege), connection.transaction():
            connection.execute(statement.encode())


async def test_a_reader_reads_follows_and_looks(mp: Milepost, make_mp: MakeMilepost, user: User) -> None:
    await mp.append("order-1", NewMessage("placed"))
    await mp.create_subscription("emails", category="order", tracking="all")
    async with make_mp(url=user("reader")) as reader:
        following = reader.follow(category="order", after=0)
        assert (await anext(following)).stream == "order-1"
        second = asyncio.ensure_future(anext(following))
        await mp.append("order-2", NewMessage("placed"))
        assert (await second).stream == "order-2"
        assert [message.stream async for message in reader.read("order-1")] == ["order-1"]
        assert await reader.head() == 2
        assert [each.name for each in await reader.subscriptions()] == ["emails"]
        assert (await reader.trace("order-1"))[0].subscription == "emails"
        with pytest.raises(InsufficientPrivilege):
            await reader.append("order-1", NewMessage("placed"))


def test_what_a_reader_may_not(connect: Connect) -> None:
    reader = connect("reader")
    is_for_others(reader, *FORGERIES, *TOKENS, "select append('a-1', 't', '1')")
    # A false horizon, or a false beginning of one, would hide messages from those who come later.
    reader.execute("select life()")
    is_for_others(reader, "update horizon set position = 9", "update server_life set base = 9")
    is_for_others(reader, "insert into server_life values (true, gen_random_uuid(), 9)", "delete from deliveries")


@pytest.mark.shard("variants", fast=["reader"])
@pytest.mark.parametrize("role", ["reader", "worker"])
def test_nobody_stops_appends_by_the_marks_of_sleepers(connect: Connect, role: str) -> None:
    """Each append looks at them: whoever may lock them, or set one for ever, would be in the way of all."""
    sleeper = connect(role)
    for mode in ("row exclusive", "access exclusive"):
        is_for_others(sleeper, f"lock table sleeps in {mode} mode")
    is_for_others(sleeper, "insert into sleeps values ('infinity')", "delete from sleeps")
    sleeper.execute("select mark_sleep('100 years', '11 s')")
    latest = "select max(until) <= clock() + interval '1 minute' from sleeps"
    assert sleeper.execute(latest).fetchone() == (True,)


async def test_an_appender_appends(mp: Milepost, make_mp: MakeMilepost, user: User) -> None:
    async with make_mp(url=user("appender")) as appender:
        placed = NewMessage("placed", {"a": 1}, properties={"b": 2}, id="01890000-0000-7000-8000-000000000001")
        first = await appender.append("order-1", placed)
        assert (first.version, first.position, first.duplicate) == (1, 1, False)
        assert (await appender.append("order-1", placed)).duplicate
        assert (
            await appender.append("order-1", [NewMessage("paid"), NewMessage("sent")], expected=1)
        ).version == 3
        with pytest.raises(WrongVersion):
            await appender.append("order-1", NewMessage("paid"), expected=1)
        await appender.append_many({"order-2": [NewMessage("a")], "order-3": [NewMessage("b")]})
        async with await psycopg.AsyncConnection.connect(appender.url) as connection:
            await appender.append("order-4", NewMessage("a"), connection=connection)
        with pytest.raises(InsufficientPrivilege):
            await anext(appender.read("order-1"))
    assert [message.position async for message in mp.read()] == [1, 2, 3, 4, 5, 6]


def test_what_an_appender_may_not(connect: Connect) -> None:
    """It reads no payload, forges no position and renames no stream, whatever it calls."""
    appender = connect("appender")
    appender.execute("select append('a-1', 't', '1')")
    appender.execute('select append_messages(\'a-1\', \'[{"type": "t", "position": 99, "version": 99}]\')')
    is_for_others(appender, *FORGERIES, *READINGS, *TOKENS, "insert into sleeps values ('infinity')")
    assert appender.execute("select version, position from append('a-1', 't', '1')").fetchone() == (3, 3)


def test_no_name_of_an_appender_is_taken_for_another(
    mp: Milepost, connect: Connect, database_url: str, schema: str
) -> None:
    """What it put into its search path, or makes as temporary, is not run with the rights of the owner."""
    appender = connect("appender")
    own = sql.Identifier(f"{schema}_own")
    with psycopg.connect(database_url, autocommit=True) as admin:
        admin.execute(
            sql.SQL("create schema {} authorization {}").format(own, sql.Identifier(f"{schema}_a_appender"))
        )
        try:
            appender.execute(sql.SQL("set search_path = {}, pg_catalog").format(own))
            body = "begin raise exception 'run by %%', current_user; end"
            for name, result in (("octet_length(text)", "integer"), ("jsonb_array_length(jsonb)", "integer")):
                statement = f"create function {name} returns {result} language plpgsql as $$ {body} $$"
                appender.execute(statement.replace("%%", "%").encode())
            appender.execute("create temporary table streams (name text, stream_id bigint)")
            call = sql.SQL("select outcome from {}.write('a-1', %s, -2, true)").format(sql.Identifier(schema))
            messages = Jsonb([{"type": "t"}, {"type": "t"}])
            assert appender.execute(call, [messages]).fetchone() == ("appended",)
        finally:
            admin.execute(sql.SQL("drop schema {} cascade").format(own))


@pytest.mark.shard("hostile", fast=["message0"])
@pytest.mark.parametrize(
    "message",
    [
        {"properties": [1]},
        {"properties": "a"},
        {"properties": {"a": {"b": 1}}},
        {"properties": {"a": [1]}},
        {"properties": {"a": None}},
        {"metadata": 1},
        {"data": nested(502)},
        {"data": {"a": [1] * 1000, "b": nested(501)}},
        {"metadata": {"a": nested(501)}},
    ],
)
def test_an_appender_cannot_bring_what_no_reader_expects(connect: Connect, message: dict[str, Any]) -> None:
    """The function that the library calls leaves some checks to it; the shape is not among them."""
    call = "select outcome from write('a-1', %s, -2, true)"
    appender, wrong = connect("appender"), {"type": "t", **message}
    for messages in ([wrong], [{"type": "t"}, wrong]):
        with pytest.raises(CheckViolation):
            appender.execute(call, [Jsonb(messages)])


async def test_what_an_appender_nests_can_be_read(mp: Milepost, connect: Connect) -> None:
    """As deeply as a program in any language may, which sends it through a server."""
    deep = {"type": "t", "data": nested(500), "metadata": {"a": nested(499)}}
    connect("appender").execute("select write('a-1', %s, -2, true)", [Jsonb([deep])])
    [message] = [message async for message in mp.read("a-1")]
    assert message.data == nested(500)


async def test_an_appender_cannot_stop_an_order(mp: Milepost, connect: Connect) -> None:
    handled = []

    @mp.subscription("ordered", ordered_by=by_property("a"))
    async def ordered(message: Message[Any]) -> None:
        handled.append(message.position)

    call = "select write('a-1', %s, -2, true)"
    with connect("appender") as appender:
        appender.execute(call, [Jsonb([{"type": "t", "properties": {"a": 1.5}}, {"type": "t"}])])
    await mp.run_until_idle()
    assert sorted(handled) == [1, 2]


async def test_a_worker_runs_programs(mp: Milepost, make_mp: MakeMilepost, user: User) -> None:
    """Handlers, exactly once, consumers and pulls, from the first declaration on."""
    worker = make_mp(url=user("worker"))
    handled: list[int] = []

    @worker.subscription("invoices", category="order", ordered_by=by_property("customer"))
    async def invoice(message: Message[Any]) -> None:
        handled.append(message.position)

    @worker.subscription("receipts", category="order")
    async def receipt(message: Message[Any], tx: Transaction) -> None:
        await tx.append(f"receipt-{message.position}", NewMessage("due"))

    async with worker:
        for number in range(3):
            await worker.append(f"order-{number}", NewMessage("placed", properties={"customer": number}))
        await worker.create_subscription("emails", category="order", tracking="all")
        await worker.create_subscription("shipping", category="order", ordered_by=None)
        await worker.run_until_idle()
        assert sorted(handled) == [1, 2, 3]
        receipts = {message.stream async for message in worker.read(category="receipt")}
        assert receipts == {"receipt-1", "receipt-2", "receipt-3"}
        tasks = await worker.pull("emails", limit=10)
        assert not (await worker.settle(ack=tasks[:2], retry=tasks[2:])).refused
        async with worker.consumer("shipping") as consumer:
            async with await anext(consumer) as message:
                assert message.position == 1
        assert {each.name for each in await worker.subscriptions()} == {
            "invoices",
            "receipts",
            "emails",
            "shipping",
        }


async def test_a_worker_with_its_progress_in_another_database(
    mp: Milepost, make_mp: MakeMilepost, user: User, schema: str, database_url: str, second_url: str
) -> None:
    """In the database of the log it is a reader and an appender; in that of progress a worker."""
    name, prefix = f"{schema}_a_reader", f"{schema}_there"
    worker = sql.Identifier(f"{prefix}_worker")
    log, progress = user("reader"), make_conninfo(second_url, user=name)
    with (
        psycopg.connect(database_url, autocommit=True) as admin,
        psycopg.connect(second_url, autocommit=True) as there,
    ):
        grant = sql.SQL("grant {} to {}")
        admin.execute(grant.format(sql.Identifier(f"{schema}_appender"), sql.Identifier(name)))
        there.execute(roles.roles_sql(schema, prefix, [roles.WORKER]).encode())
        there.execute(grant.format(worker, sql.Identifier(name)))
        try:
            handled = await _handled(make_mp(url=log, progress=progress))
        finally:
            there.execute(sql.SQL("drop owned by {0}; drop role {0}").format(worker))
    assert handled == [1]


async def _handled(program: Milepost) -> list[int]:
    handled: list[int] = []

    @program.subscription("invoices", category="order")
    async def invoice(message: Message[Any]) -> None:
        handled.append(message.position)

    async with program:
        await program.append("order-1", NewMessage("placed"))
        await program.run_until_idle()
    return handled


def test_what_a_worker_may_not(connect: Connect) -> None:
    """Above all, it makes itself no token."""
    worker = connect("worker")
    worker.execute("select append('a-1', 't', '1')")
    is_for_others(worker, *FORGERIES, *TOKENS, "delete from subscriptions", "update server_life set base = 9")


async def test_an_operator_moves_and_deletes(mp: Milepost, make_mp: MakeMilepost, user: User) -> None:
    for number in range(3):
        await mp.append(f"order-{number}", NewMessage("placed"))
    await mp.create_subscription("emails", category="order", tracking="all")
    tasks = await mp.pull("emails", limit=10)
    await mp.settle(ack=tasks[:1], park=tasks[1:])
    async with make_mp(url=user("operator")) as operator:
        emails = operator.manage("emails")
        await emails.pause()
        await emails.resume()
        assert [each.message.position async for each in emails.deliveries(state="parked") if each.message] == [
            2,
            3,
        ]
        await emails.retry([2])
        await emails.skip([3])
        await emails.update(timeout=60)
        await emails.replay(0, 1)
        await emails.move("now")
        assert (await emails.info()).status == "running"
        await emails.delete()
        assert await operator.subscriptions() == []


def test_what_an_operator_may_not(connect: Connect) -> None:
    operator = connect("operator")
    operator.execute("select append('a-1', 't', '1')")
    operator.execute("insert into tokens (name, hash, roles) values ('own', 'x', '{operate}')")
    is_for_others(operator, *FORGERIES)
    seen = operator.execute("select pg_has_role('pg_read_all_stats', 'usage')").fetchone()
    assert seen == (True,)


def test_each_table_and_each_function_of_the_owner_is_somebodys(mp: Milepost, connect: Connect) -> None:
    """A table or a function that is added has to be given to those who need it, and to nobody by oversight."""
    owner = connect("operator")
    tables = owner.execute("select tablename from pg_tables where schemaname = current_schema()").fetchall()
    assert {name for (name,) in tables} == set(
        f"{roles.LOG_TABLES} {roles.PROGRESS_TABLES} {roles.SERVER_TABLES}".split()
    )
    functions = owner.execute(
        "select proname, 'search_path=pg_catalog, pg_temp' = any (proconfig), "
        "has_function_privilege('pg_monitor', oid, 'execute') from pg_proc "
        "where pronamespace = current_schema()::regnamespace and prosecdef order by proname"
    ).fetchall()
    assert functions == [(name, True, False) for name in ("life", "mark_sleep", "write")]


def test_the_statements_can_be_run_again_and_take_back_what_is_too_much(
    database_url: str, schema: str, connect: Connect
) -> None:
    worker = connect("worker")
    with psycopg.connect(database_url, autocommit=True) as admin:
        names = {"schema": sql.Identifier(schema), "role": sql.Identifier(f"{schema}_worker")}
        admin.execute(sql.SQL("grant all on all tables in schema {schema} to {role}").format(**names))
        worker.execute("select from tokens")
        admin.execute(roles.roles_sql(schema, schema, roles.ROLES.values()).encode())
    is_for_others(worker, *FORGERIES, *TOKENS)
