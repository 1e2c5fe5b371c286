"""The fence of an exchange in a handler's transaction, whatever that transaction still sees."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import psycopg
import pytest

from milepost.dispatch import AttemptTally, Cursor, ExchangeWrite, RowChange
from milepost.postgres.pool import Connection
from milepost.progress.protocol import RolledBack, StaleLane, WorkerLease
from progress.keepers import PostgresKeeper
from progress.lanes import Owner, row, taken

REPEATABLE_READ = pytest.param("repeatable read", marks=pytest.mark.shard("faults"))
"""Its snapshots are as old as those of serializable, which is among the fast tests."""


@pytest.fixture(params=["embedded", pytest.param("postgresql_15", marks=pytest.mark.shard("oldest"))])
def database_url(request: pytest.FixtureRequest) -> str:
    """Each of the servers in turn."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


def at(position: int) -> ExchangeWrite:
    """A write of a cursor and nothing else."""
    return ExchangeWrite(Cursor(position), (), AttemptTally(1))


WRITES = {
    "a cursor": at(500),
    "a row": ExchangeWrite(Cursor(500), (RowChange(400, None, row(400)),), AttemptTally(1)),
}

WRITTEN = "insert into {}.memories (subscription, number, lane, ranges) values (99, 99, 99, '{{}}')"
"""What a handler writes: anything that can be looked for."""

Postgres = PostgresKeeper
Change = Callable[[Postgres, int], Awaitable[None]]


async def take(postgres: Postgres, subscription: int, *, exchanges: int = 0) -> None:
    [held] = await postgres.progress.take(subscription, [0])
    owner = Owner(postgres.progress, held)
    for position in range(exchanges):
        await owner.swap(at(position))


async def taken_by_another(postgres: Postgres, subscription: int) -> None:
    await take(postgres, subscription)


async def taken_and_written(postgres: Postgres, subscription: int) -> None:
    """So often that old revisions are cleaned away."""
    await take(postgres, subscription, exchanges=200)


async def fenced(postgres: Postgres, subscription: int) -> None:
    """By a deploy that changes the order."""
    await postgres.run("select {}.fence(%(subscription)s, 2)", subscription=subscription)


async def fenced_and_taken(postgres: Postgres, subscription: int) -> None:
    await fenced(postgres, subscription)
    await take(postgres, subscription)


async def fenced_taken_and_written(postgres: Postgres, subscription: int) -> None:
    await fenced(postgres, subscription)
    await take(postgres, subscription, exchanges=200)


async def moved(postgres: Postgres, subscription: int) -> None:
    put = "select {}.put_lane(%(subscription)s, 0, 3, '{{}}', true)"
    await postgres.run(put, subscription=subscription)


async def moved_taken_and_written(postgres: Postgres, subscription: int) -> None:
    await moved(postgres, subscription)
    await take(postgres, subscription, exchanges=200)


async def deleted(postgres: Postgres, subscription: int) -> None:
    await postgres.run("update {}.subscriptions set barrier = 'b', barrier_until = 'infinity'")
    await postgres.run("delete from {}.serving")
    [(is_deleted,)] = await postgres.run("select {}.delete_subscription(%(id)s, 'b')", id=subscription)
    assert is_deleted


async def log_went_back(postgres: Postgres, subscription: int) -> None:
    await postgres.run("select {}.rewind(1000, gen_random_uuid(), null, null)")


CHANGES: list[Change] = [
    taken_by_another,
    taken_and_written,
    fenced,
    fenced_and_taken,
    fenced_taken_and_written,
    moved,
    moved_taken_and_written,
    deleted,
    log_went_back,
]


@asynccontextmanager
async def transaction(postgres: Postgres, isolation: str) -> AsyncIterator[Connection]:
    """A transaction of a handler's that has read something, and commits."""
    async with await postgres.connect() as connection:
        await connection.execute(f"set transaction isolation level {isolation}".encode())
        await connection.execute(postgres.qualified("select count(*) from {}.cursors").encode())
        await connection.execute(postgres.qualified(WRITTEN).encode())
        try:
            yield connection
            await connection.commit()
        finally:
            await connection.rollback()


@pytest.mark.shard(
    "faults",
    fast=[
        "embedded-taken_by_another-just taken-a row-serializable",
        "embedded-taken_and_written-written before-a cursor-read committed",
        "embedded-fenced-just taken-a cursor-serializable",
        "embedded-fenced_and_taken-written before-a row-serializable",
        "embedded-moved-written before-a row-read committed",
        "embedded-deleted-just taken-a row-read committed",
        "embedded-log_went_back-written before-a row-read committed",
    ],
)
@pytest.mark.parametrize("isolation", ["read committed", REPEATABLE_READ, "serializable"])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("is_new", [True, False], ids=["just taken", "written before"])
@pytest.mark.parametrize("change", CHANGES)
async def test_whoever_lost_a_lane_commits_nothing(
    postgres: Postgres, change: Change, is_new: bool, write: str, isolation: str
) -> None:
    owner = Owner(postgres.progress, await taken(postgres.progress))
    if not is_new:
        await owner.swap(at(1))
    with pytest.raises((StaleLane, RolledBack, psycopg.errors.SerializationFailure)):
        async with transaction(postgres, isolation) as connection:
            await change(postgres, owner.held.subscription)
            await owner.swap(WRITES[write], connection=connection)
    assert not await postgres.run("select 1 from {}.memories where number = 99")
    assert not await postgres.run("select 1 from {}.cursors where position = 500")
    with pytest.raises(StaleLane):
        await owner.swap(WRITES[write])


@pytest.mark.parametrize("isolation", [REPEATABLE_READ, "serializable"])
@pytest.mark.parametrize("write", WRITES)
async def test_whoever_has_it_commits(postgres: Postgres, write: str, isolation: str) -> None:
    """Though other lanes of it were written meanwhile, and people have changed what does not concern this one."""
    owner = Owner(postgres.progress, await taken(postgres.progress))
    [other] = await postgres.progress.take(owner.held.subscription, [1])
    async with transaction(postgres, isolation) as connection:
        await Owner(postgres.progress, other).swap(at(7))
        await postgres.run("update {}.subscriptions set acted = acted + 1")
        await postgres.progress.declare([], WorkerLease("w", 30))
        await owner.swap(WRITES[write], connection=connection)
    assert await postgres.run("select 1 from {}.cursors where position = 500")
    await owner.swap(at(501))
