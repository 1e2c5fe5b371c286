"""SQLAlchemy sessions on the transaction of a handler: with real models, exactly once."""

import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo
from sqlalchemy import ForeignKey, select, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from milepost import Context, Message, Milepost, NewMessage, Retry, Transaction
from milepost.contrib.sqlalchemy import session, session_of
from support import MakeMilepost, qualified


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "accounts"

    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]
    payments: Mapped[list["Payment"]] = relationship(lazy="selectin")


class Payment(Base):
    __tablename__ = "payments"

    id: Mapped[int] = mapped_column(primary_key=True)
    account: Mapped[int] = mapped_column(ForeignKey("accounts.id"))
    amount: Mapped[int]
    detail: Mapped[str | None]


@pytest.fixture
async def mp(make_mp: MakeMilepost, database_url: str, schema: str) -> AsyncIterator[Milepost]:
    """The models' tables are in the test's schema, where every connection of it looks."""
    async with make_mp(url=make_conninfo(database_url, options=f"-csearch_path={schema}")) as mp:
        mp.provide(session)
        for statement in (
            "create table {}.accounts (id integer primary key, balance integer not null check (balance < 1000))",
            "create table {}.payments (id serial primary key, account integer not null, amount integer not null, "
            "detail text unique deferrable initially deferred)",
            "insert into {}.accounts values (1, 0)",
        ):
            await mp.log.database.execute(qualified(statement, mp), {})
        yield mp


async def pay(mp: Milepost, *amounts: int) -> None:
    for number, amount in enumerate(amounts):
        await mp.append(f"payment-{number}", NewMessage("paid", amount))


async def amounts(mp: Milepost) -> list[int]:
    rows = await mp.log.database.execute(qualified("select amount from {}.payments order by amount", mp), {})
    return [row[0] for row in rows]


async def balance(mp: Milepost) -> int:
    rows = await mp.log.database.execute(qualified("select balance from {}.accounts", mp), {})
    return int(rows[0][0])


async def parked(mp: Milepost) -> list[tuple[Any, ...]]:
    statement = qualified("select position, reason from {}.deliveries where state = 'parked' order by 1", mp)
    return list(await mp.log.database.execute(statement, {}))


async def test_what_a_session_writes_commits_with_the_progress(mp: Milepost) -> None:
    @mp.subscription("accounts", category="payment", lanes=1)
    async def handle(message: Message[Any], session: AsyncSession) -> None:
        account = await session.get_one(Account, 1)
        account.balance += message.data
        account.payments.append(Payment(amount=message.data))

    await pay(mp, *range(40))
    assert (await mp.run_until_idle())["accounts"].handled == 40
    assert await balance(mp) == sum(range(40))
    assert await amounts(mp) == list(range(40))
    assert (await mp.run_until_idle())["accounts"].handled == 0


async def test_a_failing_handler_undoes_its_own_rows_and_its_neighbours_stay(mp: Milepost) -> None:
    @mp.subscription("accounts", category="payment", lanes=1, retry=Retry.never)
    async def handle(message: Message[Any], session: AsyncSession) -> None:
        session.add(Payment(account=1, amount=message.data))
        await session.flush()
        if message.data == 3:
            raise ValueError("three")

    await pay(mp, *range(8))
    await mp.run_until_idle(errors="park")
    assert await amounts(mp) == [0, 1, 2, 4, 5, 6, 7]
    assert await parked(mp) == [(4, "ValueError: three")]


@pytest.mark.shard("variants", fast=["at its end"])
@pytest.mark.parametrize("flushes", [True, False], ids=["in the handler", "at its end"])
async def test_a_flush_that_fails_is_the_failure_of_its_message(mp: Milepost, flushes: bool) -> None:
    @mp.subscription("accounts", category="payment", lanes=1, retry=Retry.never)
    async def handle(message: Message[Any], session: AsyncSession) -> None:
        session.add(Payment(account=1, amount=message.data if message.data != 3 else None))
        if flushes:
            await session.flush()

    await pay(mp, *range(8))
    await mp.run_until_idle(errors="park")
    assert await amounts(mp) == [0, 1, 2, 4, 5, 6, 7]
    ((position, reason),) = await parked(mp)
    assert position == 4
    assert "null value in column" in reason


async def test_a_deferred_constraint_fails_the_guilty_message(mp: Milepost) -> None:
    @mp.subscription("accounts", category="payment", lanes=1, retry=Retry.never)
    async def handle(message: Message[Any], session: AsyncSession) -> None:
        session.add(Payment(account=1, amount=message.data, detail=str(message.data % 7)))

    await pay(mp, *range(8))
    await mp.run_until_idle(errors="park")
    assert await amounts(mp) == list(range(7))
    assert [position for position, _ in await parked(mp)] == [8]


async def test_a_commit_of_the_session_is_not_that_of_the_transaction(mp: Milepost) -> None:
    seen_from_outside = []

    @mp.subscription("accounts", category="payment", lanes=1, retry=Retry.never)
    async def handle(message: Message[Any], session: AsyncSession) -> None:
        payment = Payment(account=1, amount=message.data)
        session.add(payment)
        await session.commit()
        seen_from_outside.extend(await amounts(mp))
        assert payment.amount == message.data
        if message.data == 2:
            raise ValueError("two")

    await pay(mp, 1, 2, 3)
    await mp.run_until_idle(errors="park")
    assert seen_from_outside == []
    assert await amounts(mp) == [1, 3]


async def test_a_rollback_of_the_session_undoes_what_it_has_not_committed(mp: Milepost) -> None:
    @mp.subscription("accounts", category="payment", lanes=1)
    async def handle(message: Message[Any], session: AsyncSession, tx: Transaction) -> None:
        await tx.execute("insert into payments (account, amount) values (1, %s)", (message.data + 10,))
        session.add(Payment(account=1, amount=message.data))
        await session.commit()
        session.add(Payment(account=1, amount=message.data + 20))
        await session.flush()
        await session.rollback()
        found = await session.scalars(select(Payment.amount).order_by(Payment.amount))
        assert list(found) == [1, 11]

    await pay(mp, 1)
    assert (await mp.run_until_idle())["accounts"].handled == 1
    assert await amounts(mp) == [1, 11]


async def test_a_session_where_a_transaction_is(mp: Milepost) -> None:
    @mp.subscription("accounts", category="payment", lanes=1)
    async def handle(messages: list[Message[Any]], tx: Transaction) -> None:
        for message in messages:
            async with session_of(tx, autoflush=False) as opened:
                opened.add(Payment(account=1, amount=message.data))
        async with session_of(tx) as opened:
            assert len((await opened.get_one(Account, 1)).payments) == len(messages)

    await pay(mp, 1, 2, 3)
    await mp.run_until_idle()
    assert await amounts(mp) == [1, 2, 3]


async def test_a_lost_race_is_no_attempt(mp: Milepost) -> None:
    attempts = []

    @mp.subscription("accounts", category="payment")
    async def handle(session: AsyncSession, message: Message[Any], context: Context) -> None:
        attempts.append(context.attempt)
        session.add(Payment(account=1, amount=message.data))
        await session.flush()
        if len(attempts) < 3:
            await session.execute(text("do $$ begin raise exception using errcode = '40P01'; end $$"))

    await pay(mp, 1)
    assert (await mp.run_until_idle())["accounts"].handled == 1
    assert attempts == [1, 1, 1]
    assert await amounts(mp) == [1]


async def test_sessions_leave_nothing_on_a_connection(mp: Milepost) -> None:
    connections = set()

    @mp.subscription("accounts", category="payment", lanes=1)
    async def handle(message: Message[Any], session: AsyncSession, tx: Transaction) -> None:
        await session.get(Account, 1)
        connections.add(tx.connection)

    await pay(mp, *range(20))
    await mp.run_until_idle()
    assert all(not connection._notice_handlers and connection.autocommit for connection in connections)


def test_it_says_what_is_missing() -> None:
    program = "import sys; sys.modules['sqlalchemy'] = None; import milepost.contrib.sqlalchemy"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert 'pip install "milepost[sqlalchemy]"' in done.stderr.splitlines()[-1]
