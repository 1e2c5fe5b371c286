"""Handlers that write in the transaction of their progress."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from milepost import (
    NO_STREAM,
    Context,
    Failed,
    Message,
    Milepost,
    MilepostError,
    NewMessage,
    Retry,
    Skip,
    Transaction,
)
from milepost.engine.handlers import transient_failures
from milepost.engine.lanes.message_loader import MessageLoader
from support import MakeMilepost, qualified

Write = Callable[[Message[Any], Transaction], Awaitable[None]]

FAULTS = pytest.mark.shard("faults")


async def table(mp: Milepost) -> None:
    statement = qualified("create table {}.effects (n bigint, constraint known check (n >= 0))", mp)
    await mp.log.database.execute(statement, {})


async def deferring_table(mp: Milepost) -> None:
    """One whose constraint is checked at the commit, unless somebody says otherwise."""
    statement = qualified("create table {}.effects (n bigint, unique (n) deferrable initially deferred)", mp)
    await mp.log.database.execute(statement, {})


async def effects(mp: Milepost) -> list[int]:
    rows = await mp.log.database.execute(qualified("select n from {}.effects order by n", mp), {})
    return [row[0] for row in rows]


async def states(mp: Milepost) -> list[tuple[Any, ...]]:
    statement = qualified('select "position", state, reason from {}.deliveries order by 1', mp)
    return list(await mp.log.database.execute(statement, {}))


async def fill(mp: Milepost, count: int, streams: int = 20) -> None:
    for number in range(count):
        await mp.append(f"order-{number % streams}", NewMessage("placed", number))


def insert(mp: Milepost) -> Any:
    return qualified("insert into {}.effects values (%s)", mp)


def declare(mp: Milepost, write: Write, batch: int | None, **options: Any) -> None:
    """A subscription of which each message is written in its turn, by a handler of one or of several."""
    if batch is None:

        @mp.subscription("effects", category="order", lanes=1, **options)
        async def handle(message: Message[Any], tx: Transaction) -> None:
            await write(message, tx)

    else:

        @mp.subscription("effects", category="order", lanes=1, batch=batch, **options)
        async def handle_batch(messages: list[Message[Any]], tx: Transaction) -> None:
            for message in messages:
                await write(message, tx)


async def test_what_a_handler_writes_commits_with_its_progress(mp: Milepost) -> None:
    await table(mp)

    @mp.subscription("effects", category="order")
    async def handle(message: Message[Any], tx: Transaction) -> None:
        await tx.execute(insert(mp), (message.data,))

    await fill(mp, 200)
    report = await mp.run_until_idle()
    assert report["effects"].handled == 200
    assert await effects(mp) == list(range(200))
    assert (await mp.run_until_idle())["effects"].handled == 0


async def test_what_a_failing_handler_wrote_is_undone_and_its_neighbours_stay(mp: Milepost) -> None:
    await table(mp)

    @mp.subscription("effects", category="order", retry=Retry.never, lanes=1)
    async def handle(message: Message[Any], tx: Transaction) -> None:
        await tx.execute(insert(mp), (message.data,))
        if message.data == 7:
            raise ValueError("seven")

    await fill(mp, 20)
    await mp.run_until_idle(errors="park")
    assert await effects(mp) == [number for number in range(20) if number != 7]
    assert await states(mp) == [(8, "parked", "ValueError: seven")]


async def test_a_broken_constraint_parks_the_guilty_message_and_not_the_batch(mp: Milepost) -> None:
    await table(mp)
    unique = "alter table {}.effects add constraint once unique (n) deferrable initially deferred"
    await mp.log.database.execute(qualified(unique, mp), {})

    @mp.subscription("effects", category="order", retry=Retry.never, lanes=1)
    async def handle(message: Message[Any], tx: Transaction) -> None:
        await tx.execute(insert(mp), (message.data if message.data != 7 else 3,))

    await fill(mp, 20)
    await mp.run_until_idle(errors="park")
    assert await effects(mp) == [number for number in range(20) if number != 7]
    ((position, state, _),) = await states(mp)
    assert (position, state) == (8, "parked")


async def test_a_skipped_message_leaves_nothing_behind(mp: Milepost) -> None:
    await table(mp)

    @mp.subscription("effects", category="order")
    async def handle(message: Message[Any], tx: Transaction) -> None:
        await tx.execute(insert(mp), (message.data,))
        raise Skip

    await fill(mp, 3)
    await mp.run_until_idle()
    assert await effects(mp) == []
    assert await states(mp) == []


async def test_appends_commit_with_the_progress(mp: Milepost) -> None:
    @mp.subscription("receipts", category="order")
    async def handle(message: Message[Any], tx: Transaction) -> None:
        await tx.append(f"receipt-{message.data}", NewMessage("due"), expected=NO_STREAM)

    await fill(mp, 30)
    await mp.run_until_idle()
    receipts = [message.stream async for message in mp.read(category="receipt")]
    assert sorted(receipts) == sorted(f"receipt-{number}" for number in range(30))


async def test_a_wrong_version_is_the_message_s_own_failure(mp: Milepost) -> None:
    await mp.append("receipt-3", NewMessage("due"))

    @mp.subscription("receipts", category="order", retry=Retry.never, lanes=1)
    async def handle(message: Message[Any], tx: Transaction) -> None:
        await tx.append(f"receipt-{message.data}", NewMessage("due"), expected=NO_STREAM)

    await fill(mp, 10)
    report = await mp.run_until_idle(errors="park")
    assert report["receipts"].handled == 9
    ((_, state, reason),) = await states(mp)
    assert state == "parked"
    assert "WrongVersion" in reason


async def test_a_lost_race_is_no_attempt(mp: Milepost) -> None:
    attempts = []

    @mp.subscription("races", category="order")
    async def handle(message: Message[Any], tx: Transaction, context: Context) -> None:
        attempts.append(context.attempt)
        if len(attempts) < 3:
            raise psycopg.errors.DeadlockDetected

    await fill(mp, 1)
    report = await mp.run_until_idle()
    assert attempts == [1, 1, 1]
    assert report["races"].handled == 1


@pytest.mark.shard("faults")
async def test_many_who_write_the_same_rows_do_not_stand_in_each_other_s_way_for_long(mp: Milepost) -> None:
    """Each transaction of several messages takes two rows, in an order of its own."""
    await mp.log.database.execute(qualified("create table {}.sums (id bigint primary key, n bigint)", mp), {})
    await mp.log.database.execute(qualified("insert into {}.sums values (0, 0), (1, 0)", mp), {})
    runs = 0

    @mp.subscription("sums", category="order")
    async def handle(message: Message[Any], tx: Transaction) -> None:
        nonlocal runs
        runs += 1
        await tx.execute(qualified("update {}.sums set n = n + 1 where id = %s", mp), (message.data % 2,))

    await fill(mp, 400)
    report = await mp.run_until_idle()
    assert report["sums"].handled == 400
    rows = await mp.log.database.execute(qualified("select n from {}.sums", mp), {})
    assert [row[0] for row in rows] == [200, 200]
    # Sixteen lanes of 25 messages: had all of them gone on as they began, most would have run many times.
    assert runs < 1200


async def test_a_batch_in_a_transaction(mp: Milepost) -> None:
    await table(mp)
    batches = []

    @mp.subscription("batches", category="order", batch=10, lanes=1)
    async def handle(messages: list[Message[Any]], tx: Transaction) -> None:
        batches.append(len(messages))
        for message in messages:
            await tx.execute(insert(mp), (message.data,))

    await fill(mp, 40, streams=40)
    await mp.run_until_idle()
    assert await effects(mp) == list(range(40))
    assert max(batches) == 10


@pytest.mark.parametrize(("batch", "left"), [(None, [0, 2]), (10, [])])
async def test_what_is_no_exception_is_a_failure_all_the_same(
    mp: Milepost, batch: int | None, left: list[int]
) -> None:
    """Of its own message, where each has a call; the others of the transaction are not to blame."""

    class Panic(BaseException):
        pass

    async def write(message: Message[Any], tx: Transaction) -> None:
        await tx.execute(insert(mp), (message.data,))
        if message.data == 1:
            raise Panic("broken")

    await table(mp)
    declare(mp, write, batch, retry=Retry.never)
    await fill(mp, 3)
    report = await mp.run_until_idle(errors="park")
    assert report["effects"].parked == 3 - len(left)
    assert await effects(mp) == left


@pytest.mark.timeout(60)
async def test_a_person_who_skips_a_row_while_its_handler_writes_decides(mp: Milepost) -> None:
    await table(mp)
    begun, go_on = asyncio.Event(), asyncio.Event()
    runs = []

    @mp.subscription("effects", category="order", retry=Retry(delay=0, jitter=0))
    async def handle(message: Message[Any], tx: Transaction, context: Context) -> None:
        runs.append(context.attempt)
        if context.attempt == 1:
            raise ValueError
        await tx.execute(insert(mp), (message.data,))
        begun.set()
        await go_on.wait()

    await fill(mp, 1)
    async with mp.running():
        await begun.wait()
        skip = "update {}.deliveries set state = 'skipped', due = {}.clock(), revision = revision + 1"
        schema = mp.settings["schema"].value
        await mp.log.database.execute(skip.replace("{}", f'"{schema}"'), {})
        go_on.set()
        while (await states(mp))[0][1] != "skipped":
            await asyncio.sleep(0.01)
    assert await effects(mp) == []
    assert runs == [1, 2]


async def test_of_a_batch_only_what_failed_fails_and_the_rest_is_written(mp: Milepost) -> None:
    await table(mp)

    @mp.subscription("effects", category="order", retry=Retry.never, lanes=1, batch=20)
    async def handle(messages: list[Message[Any]], tx: Transaction) -> None:
        for message in messages:
            await tx.execute(insert(mp), (message.data,))
        if bad := {message.position: ValueError("seven") for message in messages if message.data == 7}:
            raise Failed(bad)

    await fill(mp, 20)
    report = await mp.run_until_idle(errors="park")
    assert report["effects"].handled == 19
    assert await effects(mp) == [number for number in range(20) if number != 7]
    assert await states(mp) == [(8, "parked", "ValueError: seven")]


async def test_a_failure_that_names_nobody_is_everybody_s(mp: Milepost) -> None:
    @mp.subscription("effects", category="order", retry=Retry.never, lanes=1, batch=20)
    async def handle(messages: list[Message[Any]], tx: Transaction) -> None:
        raise Failed({999: ValueError("not there")})

    await fill(mp, 3)
    await mp.run_until_idle(errors="park")
    assert [state for _, state, _ in await states(mp)] == ["parked"] * 3


async def test_an_error_that_a_handler_hides_is_its_failure_all_the_same(mp: Milepost) -> None:
    await table(mp)

    @mp.subscription("effects", category="order", retry=Retry.never, lanes=1)
    async def handle(message: Message[Any], tx: Transaction) -> None:
        with suppress(psycopg.Error):
            await tx.execute(insert(mp), (-1 if message.data == 3 else message.data,))

    await fill(mp, 6)
    await mp.run_until_idle(errors="park")
    assert await effects(mp) == [0, 1, 2, 4, 5]
    [(position, state, reason)] = await states(mp)
    assert (position, state) == (4, "parked")
    assert reason.startswith("InFailedSqlTransaction")


async def test_a_constraint_that_fails_at_the_commit_parks_the_guilty_message(mp: Milepost) -> None:
    """A handler may put a check off to the end of the transaction, which is everybody's."""
    await deferring_table(mp)

    @mp.subscription("effects", category="order", retry=Retry.never, lanes=1)
    async def handle(message: Message[Any], tx: Transaction) -> None:
        await tx.execute("set constraints all deferred")
        await tx.execute(insert(mp), (3 if message.data == 4 else message.data,))

    await fill(mp, 6)
    await mp.run_until_idle(errors="park")
    assert await effects(mp) == [0, 1, 2, 3, 5]
    [(position, state, reason)] = await states(mp)
    assert (position, state) == (5, "parked")
    assert reason.startswith("UniqueViolation")


async def test_of_a_batch_only_the_guilty_message_is_parked_when_the_commit_fails(mp: Milepost) -> None:
    await deferring_table(mp)

    @mp.subscription("effects", category="order", retry=Retry.never, lanes=1, batch=6)
    async def handle(messages: list[Message[Any]], tx: Transaction) -> None:
        await tx.execute("set constraints all deferred")
        for message in messages:
            await tx.execute(insert(mp), (3 if message.data == 4 else message.data,))

    await fill(mp, 6)
    await mp.run_until_idle(errors="park")
    assert await effects(mp) == [0, 1, 2, 3, 5]
    [(position, state, reason)] = await states(mp)
    assert (position, state) == (5, "parked")
    assert reason.startswith("UniqueViolation")


@pytest.mark.parametrize("batch", [None, 6])
async def test_a_constraint_is_checked_at_once_unless_the_handler_puts_it_off(
    mp: Milepost, batch: int | None
) -> None:
    await deferring_table(mp)
    caught = 0

    async def write(number: int, tx: Transaction) -> None:
        nonlocal caught
        try:
            async with tx.connection.transaction():
                await tx.execute(insert(mp), (number // 2,))
        except psycopg.errors.UniqueViolation:
            caught += 1

    if batch is None:

        @mp.subscription("effects", category="order", lanes=1)
        async def handle(message: Message[Any], tx: Transaction) -> None:
            await write(message.data, tx)

    else:

        @mp.subscription("effects", category="order", lanes=1, batch=batch)
        async def handle_batch(messages: list[Message[Any]], tx: Transaction) -> None:
            for message in messages:
                await write(message.data, tx)

    await fill(mp, 6)
    report = await mp.run_until_idle()
    assert (report["effects"].handled, caught) == (6, 3)
    assert await effects(mp) == [0, 1, 2]


async def test_an_error_that_a_handler_of_batches_hides_is_its_failure(mp: Milepost) -> None:
    await table(mp)

    @mp.subscription("effects", category="order", retry=Retry.never, lanes=1, batch=3)
    async def handle(messages: list[Message[Any]], tx: Transaction) -> None:
        with suppress(psycopg.Error):
            for message in messages:
                await tx.execute(insert(mp), (-1 if message.data == 4 else message.data,))

    await fill(mp, 6)
    await mp.run_until_idle(errors="park")
    assert await effects(mp) == [0, 1, 2]
    assert [(position, state) for position, state, _ in await states(mp)] == [
        (4, "parked"),
        (5, "parked"),
        (6, "parked"),
    ]


@pytest.mark.shard("variants", fast=["None-commit", "3-rollback", "None-commit and chain"])
@pytest.mark.parametrize("command", ["commit", "rollback", "commit; begin", "rollback; begin", "commit and chain"])
@pytest.mark.parametrize("batch", [None, 3])
async def test_a_handler_that_ends_the_transaction_of_its_progress_fails(
    mp: Milepost, command: str, batch: int | None
) -> None:
    await table(mp)

    async def end(tx: Transaction) -> None:
        await tx.execute(insert(mp), (1,))
        await tx.connection.execute(command)

    if batch is None:

        @mp.subscription("effects", category="order", retry=Retry.never, lanes=1)
        async def handle(message: Message[Any], tx: Transaction) -> None:
            await end(tx)

    else:

        @mp.subscription("effects", category="order", retry=Retry.never, lanes=1, batch=batch)
        async def handle_batch(messages: list[Message[Any]], tx: Transaction) -> None:
            await end(tx)

    await fill(mp, 2)
    await mp.run_until_idle(errors="park")
    found = await states(mp)
    assert [state for _, state, _ in found] == ["parked", "parked"]
    why = "TransactionEnded: the handler ended the transaction that its progress is part of"
    assert {reason for _, _, reason in found} == {why}


async def test_a_handler_that_commits_what_others_wrote_is_told_of_with_their_positions(
    mp: Milepost, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot be undone."""
    await table(mp)

    @mp.subscription("effects", category="order", retry=Retry.never, lanes=1)
    async def handle(message: Message[Any], tx: Transaction) -> None:
        await tx.execute(insert(mp), (message.data,))
        if message.data == 1:
            raise Skip
        if message.data == 3:
            await tx.connection.execute("commit; begin")

    await fill(mp, 5)
    await mp.run_until_idle(errors="park")
    assert await effects(mp) == [0, 0, 2, 2, 3, 3, 4]
    assert [(position, state) for position, state, _ in await states(mp)] == [(4, "parked")]
    [record] = [record for record in caplog.records if "ended a transaction" in record.getMessage()]
    assert record.levelname == "ERROR"
    assert record.getMessage() == (
        "effects: position 4 of order-3: the handler ended a transaction in which others had run before it: 1, 3. "
        "They run again; if it was committed, what they wrote is there twice then"
    )
    assert vars(record).items() >= {"subscription": "effects", "position": 4, "stream": "order-3"}.items()


async def test_what_goes_wrong_after_the_commit_does_not_run_it_again(
    mp: Milepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane is read again instead, and finds that it is done."""
    await table(mp)
    answer, failing = MessageLoader.answer, [True]

    async def fail_once(rows: MessageLoader, found: Any, **life: Any) -> Any:
        if failing and failing.pop():
            raise psycopg.errors.UndefinedTable("of the log")
        return await answer(rows, found, **life)

    monkeypatch.setattr(MessageLoader, "answer", fail_once)

    @mp.subscription("effects", category="order", lanes=1)
    async def handle(message: Message[Any], tx: Transaction) -> None:
        await tx.execute(insert(mp), (message.data,))

    await fill(mp, 20)
    await mp.run_until_idle()
    assert not failing
    assert await effects(mp) == list(range(20))


async def test_an_append_that_cannot_be_is_the_handler_s_failure(mp: Milepost) -> None:
    @mp.subscription("effects", category="order", retry=Retry.never, lanes=1)
    async def handle(message: Message[Any], tx: Transaction) -> None:
        await tx.append("" if message.data == 3 else f"receipt-{message.data}", NewMessage("receipt"))

    await fill(mp, 6)
    await mp.run_until_idle(errors="park")
    [(position, state, reason)] = await states(mp)
    assert (position, state) == (4, "parked")
    assert reason.startswith("InvalidMessage")
    assert len([message async for message in mp.read(category="receipt")]) == 5


@pytest.mark.parametrize("batch", [None, 3])
async def test_what_a_handler_writes_is_in_the_transaction_of_its_progress(
    mp: Milepost, batch: int | None
) -> None:
    await mp.log.database.execute(qualified("create table {}.effects (transaction text)", mp), {})

    async def write(message: Message[Any], tx: Transaction) -> None:
        await tx.execute(qualified("insert into {}.effects select pg_current_xact_id()::xid::text", mp))

    declare(mp, write, batch)
    await fill(mp, 1)
    await mp.run_until_idle()
    [(written,)] = await mp.log.database.execute(qualified("select transaction from {}.effects", mp), {})
    cursors = qualified('select xmin::text from {}.cursors where "position" = 1', mp)
    assert written in [row[0] for row in await mp.log.database.execute(cursors, {})]


async def raise_by_hand(tx: Transaction) -> None:
    raise psycopg.errors.SerializationFailure("of another database")


async def raise_in_the_database(tx: Transaction) -> None:
    await tx.execute("do $$ begin raise 'never' using errcode = '40001'; end $$")


@pytest.mark.parametrize("batch", [None, pytest.param(3, marks=FAULTS)])
@pytest.mark.parametrize("lose", [pytest.param(raise_by_hand, marks=FAULTS), raise_in_the_database])
async def test_a_race_that_is_lost_for_minutes_is_a_failed_attempt_of_its_message(
    mp: Milepost,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    lose: Callable[[Transaction], Awaitable[None]],
    batch: int | None,
) -> None:
    monkeypatch.setattr(transient_failures, "UNCOUNTED_SECONDS", 0.0)
    await table(mp)

    async def write(message: Message[Any], tx: Transaction) -> None:
        await tx.execute(insert(mp), (message.data,))
        if message.data == 2:
            await lose(tx)

    declare(mp, write, batch, retry=Retry(attempts=2, delay=0))
    await fill(mp, 6)
    async with asyncio.timeout(100):
        report = await mp.run_until_idle(errors="park")
    assert await effects(mp) == [0, 1, 3, 4, 5]
    [(position, state, reason)] = await states(mp)
    assert (position, state) == (3, "parked")
    assert reason.startswith("SerializationFailure: ")
    # The one that it took to be alone is not counted.
    assert report["effects"].failed == 1
    records = [record for record in caplog.records if "lost races for more than" in record.getMessage()]
    assert {(record.levelname, vars(record)["position"]) for record in records} == {("WARNING", 3)}
    [info] = await mp.subscriptions()
    assert (info.last_error or "").startswith("SerializationFailure: ")


@pytest.mark.parametrize("batch", [None, 3])
async def test_a_race_that_is_lost_again_and_again_is_put_off_uncounted_and_others_go_on(
    mp: Milepost, monkeypatch: pytest.MonkeyPatch, batch: int | None
) -> None:
    monkeypatch.setattr(transient_failures, "MAX_TRIES_IN_PLACE", 1)
    await table(mp)
    loses = True

    async def write(message: Message[Any], tx: Transaction) -> None:
        if message.data == 2 and loses:
            await raise_in_the_database(tx)
        await tx.execute(insert(mp), (message.data,))

    declare(mp, write, batch, retry=Retry.never)
    await fill(mp, 6)
    # What is put off is not due yet.
    report = await mp.run_until_idle()
    assert (report["effects"].handled, report["effects"].failed) == (5, 0)
    [delivery] = [each async for each in mp.manage("effects").deliveries()]
    assert (delivery.position, delivery.state, delivery.attempts) == (3, "retrying", 0)
    assert delivery.reason.startswith("SerializationFailure: ")
    loses = False
    is_due = "update {0}.deliveries set due = {0}.clock(), revision = revision + 1"
    await mp.log.database.execute(qualified(is_due, mp), {})
    assert (await mp.run_until_idle())["effects"].handled == 1
    assert await effects(mp) == list(range(6))


@pytest.mark.parametrize("batch", [None, 3])
async def test_a_lost_race_in_other_words_is_no_attempt(mp: Milepost, batch: int | None) -> None:
    """A handler may have errors of its own for what the database says."""
    await table(mp)
    lost = 0

    async def write(message: Message[Any], tx: Transaction) -> None:
        nonlocal lost
        await tx.execute(insert(mp), (message.data,))
        if message.data == 2 and lost < 2:
            lost += 1
            try:
                await raise_in_the_database(tx)
            except psycopg.Error as error:
                raise RuntimeError("the order cannot be stored") from error

    declare(mp, write, batch, retry=Retry.never)
    await fill(mp, 6)
    report = await mp.run_until_idle()
    assert (report["effects"].handled, report["effects"].failed, lost) == (6, 0, 2)
    assert await effects(mp) == list(range(6))


@pytest.mark.parametrize("batch", [None, 3])
async def test_a_lost_race_in_a_group_of_tasks_is_no_attempt(mp: Milepost, batch: int | None) -> None:
    await table(mp)
    lost = 0

    async def write(message: Message[Any], tx: Transaction) -> None:
        nonlocal lost
        await tx.execute(insert(mp), (message.data,))
        if message.data == 2 and lost < 2:
            lost += 1
            async with asyncio.TaskGroup() as group:
                group.create_task(raise_in_the_database(tx))

    declare(mp, write, batch, retry=Retry.never)
    await fill(mp, 6)
    report = await mp.run_until_idle()
    assert (report["effects"].handled, report["effects"].failed, lost) == (6, 0, 2)
    assert await effects(mp) == list(range(6))


@pytest.mark.parametrize("batch", [None, 1])
async def test_a_task_that_outlives_its_handler_writes_nothing(mp: Milepost, batch: int | None) -> None:
    """What it wrote would be part of another message's call, and undone with it."""
    await table(mp)
    next_is_called = asyncio.Event()
    left: list[asyncio.Task[None]] = []

    async def write_later(tx: Transaction, statement: Any) -> None:
        await next_is_called.wait()
        with pytest.raises(MilepostError, match="a handler waits for the tasks that it starts"):
            await tx.append("receipt-1", NewMessage("due"))
        await tx.execute(statement, (100,))

    async def write(message: Message[Any], tx: Transaction) -> None:
        if message.data == 0:
            left.append(asyncio.create_task(write_later(tx, insert(mp))))
            return
        next_is_called.set()
        with pytest.raises(MilepostError, match="the handler that got this Transaction has ended"):
            await left[0]

    declare(mp, write, batch)
    await fill(mp, 2)
    report = await mp.run_until_idle()
    assert report["effects"].handled == 2
    assert await effects(mp) == []


async def test_nothing_more_is_called_after_a_system_exit_that_runs_on_its_own(mp: Milepost) -> None:
    """An append is refused at the end, so that each message of the transaction runs again in one of its own."""
    called: list[int] = []

    @mp.subscription("effects", category="order", ordered_by=None)
    async def handle(message: Message[Any], tx: Transaction) -> None:
        called.append(message.data)
        if message.data == 0:
            await tx.append("receipt-1", NewMessage("due"), expected=7)
        if message.data == 2:
            raise SystemExit(3)

    await fill(mp, 6)
    with pytest.raises(SystemExit):
        await mp.run_until_idle(errors="park")
    assert called == [0, 1, 2, 0, 1, 2]
    assert [row[:2] for row in await states(mp)] == [(1, "parked"), (3, "parked")]
    assert (await mp.run_until_idle())["effects"].handled == 3
    assert called[6:] == [3, 4, 5]


async def close(tx: Transaction) -> None:
    await tx.connection.close()


async def terminate(tx: Transaction) -> None:
    await tx.execute("select pg_terminate_backend(pg_backend_pid())")


async def terminate_and_hide_it(tx: Transaction) -> None:
    with suppress(psycopg.Error):
        await terminate(tx)


@pytest.mark.parametrize(("batch", "parked"), [(None, [3]), pytest.param(3, [1, 2, 3], marks=FAULTS)])
@pytest.mark.parametrize("end", [close, terminate, pytest.param(terminate_and_hide_it, marks=FAULTS)])
async def test_a_handler_that_ends_its_connection_every_time_fails(
    mp: Milepost, end: Callable[[Transaction], Awaitable[None]], batch: int | None, parked: list[int]
) -> None:
    """A batch is one unit."""
    await table(mp)

    async def write(message: Message[Any], tx: Transaction) -> None:
        await tx.execute(insert(mp), (message.position,))
        if message.position == 3:
            await end(tx)

    declare(mp, write, batch, retry=Retry.never)
    await fill(mp, 6)
    async with asyncio.timeout(100):
        await mp.run_until_idle(errors="park")
    assert [(position, state) for position, state, _ in await states(mp)] == [(each, "parked") for each in parked]
    assert await effects(mp) == [position for position in range(1, 7) if position not in parked]


async def test_a_connection_that_ends_once_is_no_attempt(mp: Milepost) -> None:
    await table(mp)
    attempts = []

    @mp.subscription("effects", category="order", lanes=1)
    async def handle(message: Message[Any], tx: Transaction, context: Context) -> None:
        attempts.append(context.attempt)
        await tx.execute(insert(mp), (message.data,))
        if len(attempts) < 3:
            await terminate(tx)

    await fill(mp, 1)
    await mp.run_until_idle()
    assert attempts == [1, 1, 1]
    assert await effects(mp) == [0]


@pytest.mark.parametrize("batch", [None, 3])
async def test_a_call_that_takes_too_long_has_failed_also_when_the_server_ends_its_transaction(
    mp: Milepost, batch: int | None
) -> None:
    calls = 0

    async def write(message: Message[Any], tx: Transaction) -> None:
        nonlocal calls
        calls += 1
        await tx.execute("set local idle_in_transaction_session_timeout = 1")
        await asyncio.Event().wait()

    declare(mp, write, batch, retry=Retry.never, timeout=0.2)
    await fill(mp, 1)
    await mp.run_until_idle(errors="park")
    assert (calls, await states(mp)) == (1, [(1, "parked", "TimedOut: timed out after 0.2 s")])


@pytest.mark.parametrize("batch", [None, 3])
async def test_the_server_ends_a_transaction_that_stands_still_for_longer_than_a_call_may(
    mp: Milepost, batch: int | None
) -> None:
    found = []

    async def write(message: Message[Any], tx: Transaction) -> None:
        cursor = await tx.execute("show idle_in_transaction_session_timeout")
        found.extend(await cursor.fetchall())

    declare(mp, write, batch, timeout=20, lease=30)
    await fill(mp, 1)
    await mp.run_until_idle()
    assert found == [("30s",)]


@pytest.mark.parametrize("batch", [None, 1])
async def test_an_append_that_is_refused_parks_its_message_also_where_that_is_hidden(
    make_mp: MakeMilepost, second_url: str, batch: int | None
) -> None:
    async def announce(tx: Transaction) -> None:
        with suppress(Exception):
            await tx.append("receipt-1", NewMessage("due"))

    async def write(message: Message[Any], tx: Transaction) -> None:
        if message.data == 1:
            await announce(tx)

    async with make_mp(progress=second_url) as mp:
        declare(mp, write, batch)
        await fill(mp, 3)
        report = await mp.run_until_idle(errors="park")
        assert (report["effects"].handled, report["effects"].parked) == (2, 1)
        [parked] = [row async for row in mp.manage("effects").deliveries()]
        assert (parked.position, parked.reason.split(":")[0]) == (2, "CannotAppend")


@pytest.mark.parametrize("transaction", [False, True])
async def test_a_failure_of_none_is_refused_and_everybody_s(mp: Milepost, transaction: bool) -> None:
    async def handle(messages: list[Message[Any]]) -> None:
        raise Failed({})

    async def handle_in_transaction(messages: list[Message[Any]], tx: Transaction) -> None:
        raise Failed({})

    options = {"category": "order", "retry": Retry.never, "lanes": 1}
    mp.subscription("effects", **options)(handle_in_transaction if transaction else handle)
    await fill(mp, 3)
    await mp.run_until_idle(errors="park")
    found = await states(mp)
    assert [state for _, state, _ in found] == ["parked"] * 3
    assert {reason.split(":")[0] for _, _, reason in found} == {"ValueError"}
