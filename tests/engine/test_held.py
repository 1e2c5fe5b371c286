"""What a held horizon keeps back: figures of their own, and who holds it."""

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from milepost import Message, Milepost, NewMessage
from milepost.log import protocol
from milepost.log.protocol import HorizonHolder


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction is named that lasts a moment."""
    monkeypatch.setattr(protocol, "HOLDER_NAMED_SECONDS", 0.02)


async def append(mp: Milepost, stream: str) -> None:
    await mp.append(stream, NewMessage("placed"))


async def test_figures_of_their_own_and_who_holds_it(mp: Milepost, database_url: str) -> None:
    await mp.create_subscription("shipping")
    await append(mp, "order-1")
    shipping = mp.manage("shipping")
    connecting = psycopg.AsyncConnection.connect(database_url, application_name="checkout")
    async with await connecting as holder, holder.transaction():
        await mp.append("order-2", NewMessage("placed"), connection=holder)
        await append(mp, "order-3")
        await append(mp, "order-4")
        await asyncio.sleep(protocol.HOLDER_NAMED_SECONDS)
        info = await shipping.info()
        assert (info.lag.positions, info.lag.held_positions) == (1, 3)
        assert 0 < info.lag.held_seconds < 60
        assert info.held_by is not None
        assert (info.held_by.pid, info.held_by.application) == (holder.info.backend_pid, "checkout")
        assert info.held_by.ended_by == f"select pg_terminate_backend({holder.info.backend_pid})"
        start = f"pid {holder.info.backend_pid} (checkout), idle in transaction, open for "
        assert str(info.held_by).startswith(start)
        assert [each.lag.held_positions for each in await mp.subscriptions()] == [3]
    info = await shipping.info()
    assert (info.lag.positions, info.lag.held_positions, info.lag.held_seconds, info.held_by) == (4, 0, 0.0, None)


async def test_a_moment_is_a_figure_and_names_nobody(mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HOLDER_NAMED_SECONDS", 3600.0)
    await mp.create_subscription("shipping")
    async with mp.log.database.connection() as holder, holder.transaction():
        await mp.append("order-1", NewMessage("placed"), connection=holder)
        info = await mp.manage("shipping").info()
    assert (info.lag.held_positions, info.held_by) == (1, None)


async def test_one_that_began_meanwhile_is_held_by_what_it_has_not_seen(mp: Milepost) -> None:
    """A start at `now` counts what is visible beyond the horizon as done."""
    async with mp.log.database.connection() as holder, holder.transaction():
        await mp.append("order-1", NewMessage("placed"), connection=holder)
        await append(mp, "order-2")
        await mp.create_subscription("late", start="now")
        assert (await mp.manage("late").info()).lag.held_positions == 1


async def test_where_ages_may_not_be_seen_the_first_message_tells(
    mp: Milepost, database_url: str, schema: str
) -> None:
    role, names = f"{schema}_reader", [sql.Identifier(schema), sql.Identifier(f"{schema}_reader")]
    await mp.create_subscription("shipping")
    with psycopg.connect(database_url, autocommit=True) as admin:
        admin.execute(sql.SQL("create role {} login").format(names[1]))
        try:
            for of in ("schema", "all tables in schema", "all sequences in schema"):
                admin.execute(sql.SQL(f"grant all on {of} {{}} to {{}}").format(*names))
            reader = Milepost(make_conninfo(database_url, user=role), schema=schema, migrate="check")
            async with reader, mp.log.database.connection() as holder, holder.transaction():
                await mp.append("order-1", NewMessage("placed"), connection=holder)
                await append(mp, "order-2")
                await asyncio.sleep(2 * protocol.HOLDER_NAMED_SECONDS)
                info = await reader.manage("shipping").info()
        finally:
            admin.execute(sql.SQL("drop owned by {}").format(names[1]))
            admin.execute(sql.SQL("drop role {}").format(names[1]))
    assert info.lag.held_positions == 2
    assert 0 < info.lag.held_seconds < 60
    assert info.held_by is not None
    assert str(info.held_by).endswith("in a state this role may not see, open for an unknown time")


@pytest.mark.parametrize(
    ("holder", "statement"),
    [
        (HorizonHolder("7", 4711, "a", "active", 1.0, None), "select pg_terminate_backend(4711)"),
        (HorizonHolder("7", None, "", "prepared", 1.0, "it's"), "rollback prepared 'it''s'"),
    ],
)
def test_the_statement_that_ends_it(holder: HorizonHolder, statement: str) -> None:
    assert holder.ended_by == statement


async def test_a_handler_sees_it_go_on_as_soon_as_it_ends(mp: Milepost) -> None:
    @mp.subscription("orders", category="order")
    async def handle(message: Message[Any]) -> None: ...

    async with mp.running(), mp.log.database.connection() as holder:
        async with holder.transaction():
            await mp.append("order-1", NewMessage("placed"), connection=holder)
            await append(mp, "order-2")
            assert (await mp.manage("orders").info()).lag.held_positions == 2
        async with asyncio.timeout(60):
            while (info := await mp.manage("orders").info()).lag.positions:
                await asyncio.sleep(0.02)
        assert info.lag.held_positions == 0
