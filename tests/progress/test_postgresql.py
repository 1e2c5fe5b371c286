"""Progress in PostgreSQL: what only a database with other sessions in it can get wrong, and what it costs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import psycopg
import pytest

from milepost.dispatch import AttemptTally, Cursor, Exchange, ExchangeWrite, RowChange
from milepost.errors import SchemaMismatch, Unavailable
from milepost.postgres.pool import Connection, Database
from milepost.progress.postgres.progress import PostgresProgress
from milepost.progress.protocol import ExchangeResult, LaneGrant, RolledBack, RowOnly, StaleLane
from progress.keepers import PostgresKeeper
from progress.lanes import Owner, asking, definition, held_positions, row, taken


@pytest.fixture(params=["embedded", pytest.param("postgresql_15", marks=pytest.mark.shard("oldest"))])
def database_url(request: pytest.FixtureRequest) -> str:
    """Each of the servers in turn."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
async def owner(postgres: PostgresKeeper) -> Owner:
    """The owner of lane 0 of a new subscription."""
    return Owner(postgres.progress, await taken(postgres.progress))


def at(position: int) -> ExchangeWrite:
    """A write of a cursor and nothing else."""
    return ExchangeWrite(Cursor(position), (), AttemptTally(1))


@asynccontextmanager
async def transaction(postgres: PostgresKeeper, isolation: str = "read committed") -> AsyncIterator[Connection]:
    """A transaction of a handler's, which is rolled back unless it commits."""
    async with await postgres.connect() as connection:
        await connection.execute(f"set transaction isolation level {isolation}".encode())
        await connection.execute("select 1")
        yield connection
        await connection.rollback()


async def test_a_schema_without_progress(database_url: str, unused_schema: str) -> None:
    database = Database(database_url, pool_size=1)
    await database.open()
    with pytest.raises(SchemaMismatch):
        await PostgresProgress(database, unused_schema).open()
    await database.close()


class TestItsTransaction:
    async def exchanged_in(
        self, owner: Owner, write: ExchangeWrite | None, connection: Connection | None
    ) -> str | None:
        exchange = Exchange[RowOnly](0.0, write, None if write else asking(due=True))
        exchanged = await owner.progress.exchange(
            owner.held, exchange, stall_after=9, on_park="block", connection=connection
        )
        owner.held = exchanged.held
        return exchanged.transaction

    async def test_a_question_takes_no_transaction_id(self, owner: Owner) -> None:
        assert await self.exchanged_in(owner, None, None) is None

    @pytest.mark.parametrize(
        "write", [None, at(1), ExchangeWrite(Cursor(1), (RowChange(2, None, row(2)),), AttemptTally(1))]
    )
    async def test_it_has_the_name_of_a_handler_s(
        self, postgres: PostgresKeeper, owner: Owner, write: ExchangeWrite | None
    ) -> None:
        async with transaction(postgres) as connection:
            cursor = await connection.execute("select pg_current_xact_id()::text")
            assert await self.exchanged_in(owner, write, connection) == (await cursor.fetchone() or [None])[0]

    @pytest.mark.parametrize(
        "write", [at(1), ExchangeWrite(Cursor(1), (RowChange(2, None, row(2)),), AttemptTally(1))]
    )
    async def test_what_writes_has_one(self, owner: Owner, write: ExchangeWrite) -> None:
        assert await self.exchanged_in(owner, write, None)


class TestRevisions:
    async def test_old_ones_go(self, postgres: PostgresKeeper, owner: Owner) -> None:
        for position in range(150):
            await owner.swap(at(position))
        [[lowest, highest, taken_ones]] = await postgres.run(
            "select min(revision) filter (where taken is null), max(revision), count(taken) from {}.cursors "
            "where lane = 0"
        )
        assert highest == owner.held.revision
        assert lowest > highest - 64
        assert taken_ones == 1

    async def test_what_began_an_epoch_goes_after_a_day(self, postgres: PostgresKeeper, owner: Owner) -> None:
        for _ in range(20):
            await postgres.progress.take(owner.held.subscription, [0])
        count = "select count(*) from {}.cursors where lane = 0"
        assert await postgres.run(count) == [(21,)]
        await postgres.advance(25 * 3600)
        [held] = await postgres.progress.take(owner.held.subscription, [0])
        assert await postgres.run(count) == [(1,)]
        await Owner(postgres.progress, held).swap(at(3))

    async def test_a_write_that_was_lost_with_a_crash(self, postgres: PostgresKeeper, owner: Owner) -> None:
        """Without synchronous commit the last revisions may be gone: who goes on from there would skip rows."""
        await owner.swap(at(1))
        await owner.add(row(7))
        await postgres.run("delete from {}.cursors where revision = %(last)s", last=owner.held.revision)
        with pytest.raises(StaleLane):
            await owner.swap(at(9))
        with pytest.raises(StaleLane):
            await owner.add(row(10))

    @pytest.mark.parametrize("how", ["plain", "with rows", "question", "release"])
    async def test_a_revision_that_comes_again_with_another_owner(
        self, postgres: PostgresKeeper, owner: Owner, how: str
    ) -> None:
        """After a crash that lost the last writes: the number alone does not say whose it is."""
        await owner.swap(at(1))
        await owner.swap(at(2))
        await postgres.run(
            "delete from {}.cursors where lane = 0 and revision >= %(lost)s", lost=owner.held.revision - 1
        )
        [held] = await (await postgres.another()).take(owner.held.subscription, [0])
        other = Owner(postgres.progress, held)
        await other.swap(at(1))
        assert other.held.revision == owner.held.revision
        with pytest.raises(StaleLane):
            match how:
                case "plain":
                    await owner.swap(at(9))
                case "with rows":
                    await owner.add(row(9))
                case "question":
                    await owner.ask(due=True)
                case _:
                    await owner.progress.release(owner.held, None)
        await other.swap(at(3))
        newest = 'select epoch, "position" from {}.cursors where lane = 0 order by revision desc limit 1'
        assert await postgres.run(newest) == [(other.held.epoch, 3)]

    async def test_two_takers_at_once(self, postgres: PostgresKeeper, owner: Owner) -> None:
        others = [await postgres.another() for _ in range(4)]
        for _ in range(10):
            found = await asyncio.gather(*(other.take(owner.held.subscription, [0, 1]) for other in others))
            lanes = [(held.lane, held.revision) for all_ in found for held in all_]
            assert len(set(lanes)) == len(lanes)
            held = [one for all_ in found for one in all_ if one.lane == 0]
            assert held
            newest = max(one.revision for one in held)
            for one in held:
                if one.revision < newest:
                    with pytest.raises(StaleLane):
                        await Owner(postgres.progress, one).swap(at(5))
            await Owner(postgres.progress, max(held, key=lambda one: one.revision)).swap(at(6))

    async def test_an_owner_and_a_taker_at_once(self, postgres: PostgresKeeper, owner: Owner) -> None:
        """Whatever the order, what the owner was told to be written is what the taker finds."""
        other = await postgres.another()
        for position in range(1, 30):
            moves = (RowChange(position, None, row(position)),)
            writing = asyncio.create_task(owner.swap(ExchangeWrite(Cursor(position), moves, AttemptTally(1))))
            [held] = await other.take(owner.held.subscription, [0])
            await asyncio.wait([writing])
            wrote = not isinstance(writing.exception(), StaleLane)
            assert (held.state.cursor == Cursor(position)) is wrote
            rows = await postgres.run("select 1 from {}.deliveries where position = %(at)s", at=position)
            assert bool(rows) is wrote
            owner = Owner(postgres.progress, held)


class TestTransactions:
    async def test_an_exchange_is_part_of_it(self, postgres: PostgresKeeper, owner: Owner) -> None:
        before = owner.held
        for write in (at(5), ExchangeWrite(Cursor(6), (RowChange(6, None, row(6)),), AttemptTally(0, 1))):
            async with transaction(postgres) as connection:
                await owner.swap(write, connection=connection)
            owner.held = before
        async with transaction(postgres) as connection:
            await owner.swap(
                ExchangeWrite(Cursor(7), (RowChange(7, None, row(7)),), AttemptTally(1)), connection=connection
            )
            await connection.commit()
        answer = await owner.ask(keys=["k"])
        assert (held_positions(answer), answer.streak) == ({"k": ([7], False)}, 0)

    async def test_what_was_taken_is_refused_in_it(self, postgres: PostgresKeeper, owner: Owner) -> None:
        await postgres.progress.take(owner.held.subscription, [0])
        for write in (at(5), ExchangeWrite(Cursor(6), (RowChange(6, None, row(6)),), AttemptTally(0, 1))):
            async with transaction(postgres) as connection:
                with pytest.raises(StaleLane):
                    await owner.swap(write, connection=connection)

    async def test_a_required_row_in_it(self, postgres: PostgresKeeper, owner: Owner) -> None:
        async with transaction(postgres) as connection:
            with pytest.raises(RolledBack):
                await owner.move(RowChange(3, 1, None, required=True), connection=connection)

    @pytest.mark.parametrize("plain", [True, False])
    async def test_an_old_snapshot_does_not_hide_who_took_the_lane(
        self, postgres: PostgresKeeper, owner: Owner, plain: bool
    ) -> None:
        """It shows the old revision as the newest; what has been cleaned since would let a stale write through."""
        async with transaction(postgres, "repeatable read") as connection:
            [held] = await postgres.progress.take(owner.held.subscription, [0])
            new = Owner(postgres.progress, held)
            for position in range(200):
                await new.swap(at(position))
            with pytest.raises(StaleLane):
                await owner.swap(
                    at(5) if plain else ExchangeWrite(Cursor(5), (), AttemptTally(0, 1)), connection=connection
                )

    async def test_who_is_writing_is_not_waited_for(self, postgres: PostgresKeeper, owner: Owner) -> None:
        subscription = owner.held.subscription
        async with transaction(postgres) as connection:
            await owner.swap(at(5), connection=connection)
            # It would wait for as long as this transaction is open.
            async with asyncio.timeout(60):
                held = await postgres.progress.take(subscription, [0, 1])
            assert [one.lane for one in held] == [1]
        assert [one.lane for one in await postgres.progress.take(subscription, [0])] == [0]

    async def test_a_person_who_is_at_it_comes_first(self, postgres: PostgresKeeper, owner: Owner) -> None:
        await owner.add(row(1, "parked"), row(2, "parked"))
        async with transaction(postgres) as person:
            change = "update {}.deliveries set state = 'skipped', revision = revision + 1 where position = 1"
            await person.execute(postgres.qualified(change).encode())
            waiting = asyncio.create_task(owner.move(RowChange(1, 1, None), RowChange(2, 1, None)))
            await blocked(postgres)
            await person.commit()
            assert list((await waiting).moved) == [False, True]

    async def test_a_lost_connection(self, postgres: PostgresKeeper, owner: Owner) -> None:
        """What came of the exchange is unknown."""
        await owner.add(row(1))
        async with transaction(postgres) as person:
            await person.execute(postgres.qualified("select from {}.deliveries for update").encode())
            waiting = asyncio.create_task(owner.move(RowChange(1, 1, None)))
            [pid] = await blocked(postgres)
            await postgres.run("select pg_terminate_backend(%(pid)s::integer, 5000)", pid=pid)
            with pytest.raises(Unavailable):
                await waiting

    async def test_a_statement_that_took_too_long_is_rolled_back_for_certain(
        self, postgres: PostgresKeeper, owner: Owner
    ) -> None:
        await owner.add(row(1))
        async with transaction(postgres) as person:
            await person.execute(postgres.qualified("select from {}.deliveries for update").encode())
            waiting = asyncio.create_task(owner.move(RowChange(1, 1, None)))
            [pid] = await blocked(postgres)
            await postgres.run("select pg_cancel_backend(%(pid)s::integer)", pid=pid)
            with pytest.raises(RolledBack):
                await waiting
        assert list((await owner.move(RowChange(1, 1, None))).moved) == [True]


class TestCursorsThatAreWrittenAlone:
    """Now and then one is, to remove old revisions: by then others of the same call are written."""

    @pytest.fixture
    async def lanes(self, postgres: PostgresKeeper) -> list[LaneGrant]:
        """Two, of which the second is to be written alone."""
        [opened] = await postgres.progress.declare([definition(lanes=2)])
        plain, alone = [Owner(postgres.progress, held) for held in await postgres.progress.take(opened.id, [0, 1])]
        while (alone.held.revision + 1) % 64:
            await alone.swap(at(1))
        return [plain.held, alone.held]

    @pytest.mark.parametrize("error", [RolledBack("no"), Unavailable("gone")])
    async def test_one_fails_alone(
        self,
        postgres: PostgresKeeper,
        lanes: list[LaneGrant],
        error: Exception,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        async def fails(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(PostgresProgress, "_exchange", fails)
        first, second = await postgres.progress.write([(held, at(5)) for held in lanes])
        assert (first is not None, second) == (True, None)
        with pytest.raises(type(error)):
            await postgres.progress.write([(lanes[1], at(5))])

    async def test_one_is_tried_again(
        self, postgres: PostgresKeeper, lanes: list[LaneGrant], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        exchange, tried = PostgresProgress._exchange, []

        async def fails_once(self: PostgresProgress, *args: Any, **options: Any) -> ExchangeResult:
            tried.append(args)
            if len(tried) == 1:
                raise RolledBack("a deadlock")
            return await exchange(self, *args, **options)

        monkeypatch.setattr(PostgresProgress, "_exchange", fails_once)
        assert None not in await postgres.progress.write([(held, at(5)) for held in lanes])


async def blocked(postgres: PostgresKeeper) -> list[int]:
    """The processes that wait for a lock, once there are any."""
    async with asyncio.timeout(60):
        while True:
            rows = await postgres.run(
                "select pid from pg_stat_activity where wait_event_type = 'Lock' and query like %(schema)s",
                schema=f"%{postgres.schema}%",
            )
            if rows:
                return [row[0] for row in rows]


class TestCounts:
    async def test_lanes_that_write_at_once(self, postgres: PostgresKeeper) -> None:
        """Each adds what it changed; nobody waits for the others, and the sum is right."""
        [opened] = await postgres.progress.declare([definition(lanes=6)])
        owners = [
            Owner(await postgres.another(), held) for held in await postgres.progress.take(opened.id, range(6))
        ]

        async def work(lane: int, owner: Owner) -> None:
            for number in range(60):
                position = 1000 * lane + number
                await owner.add(row(position, "waiting" if number % 2 else "retrying"))
                if number % 3 == 0:
                    await owner.move(RowChange(position, 1, None))

        await asyncio.gather(*(work(lane, owner) for lane, owner in enumerate(owners)))
        counts = (await owners[0].ask(due=True)).counts
        rows = await postgres.run("select state, count(*) from {}.deliveries group by state")
        assert dict(rows) == {"waiting": counts.waiting, "retrying": counts.retrying}
        [[folded]] = await postgres.run("select count(*) from {}.counts")
        assert folded < 200

    async def test_rows_of_many_subscriptions(self, postgres: PostgresKeeper) -> None:
        """A person may change rows of several with one statement."""
        owners = [Owner(postgres.progress, await taken(postgres.progress, name=name)) for name in "ab"]
        for number, owner in enumerate(owners):
            await owner.add(row(1), row(2, "parked"), *(row(n) for n in range(3, 3 + number)))
        await postgres.run("update {}.deliveries set state = 'retrying' where position <= 2")
        found = [(await owner.ask(due=True)).counts for owner in owners]
        assert [(counts.waiting, counts.retrying) for counts in found] == [(0, 2), (1, 2)]


async def test_a_healthy_exchange_leaves_the_subscription_alone(postgres: PostgresKeeper, owner: Owner) -> None:
    """A row that each lane updates at each write is where they would wait for each other."""
    version = "select ctid::text, xmin::text, xmax::text from {}.subscriptions"
    before = await postgres.run(version)
    await owner.swap(at(5))
    await owner.add(row(1), succeeded=5)
    await owner.swap(at(6), asking(keys=["k"]))
    assert await postgres.run(version) == before
    await owner.add(row(2, "retrying"), failed=1)
    assert await postgres.run(version) != before


class TestCosts:
    """With many rows of a kind an exchange reads a few blocks, also by plans from when there were none.

    In the shard `large` with 100,000 of each.
    """

    MANY = 100_000

    @pytest.fixture(params=["embedded", pytest.param("postgresql_15", marks=pytest.mark.shard("oldest"))])
    def database_url(self, request: pytest.FixtureRequest) -> str:
        """Both servers: each plans by itself."""
        url: str = request.getfixturevalue(f"{request.param}_url")
        return url

    async def blocks(self, connection: Connection, statement: str, parameters: dict[str, Any]) -> int:
        text: Any = "explain (analyze, buffers, format json) " + statement
        found = await (await connection.execute(text, parameters)).fetchone()
        assert found is not None
        plan = found[0][0]["Plan"]
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    def parameters(
        self, owner: Owner, moves: list[dict[str, Any]] | None, *, keep_done: float | None = None, **question: Any
    ) -> dict[str, Any]:
        held = owner.held
        ask = msgspec.json.encode(asking(**question)).decode() if question else None
        return {
            "subscription": held.subscription,
            "lane": held.lane,
            "life": held.life,
            "epoch": held.epoch,
            "revision": held.revision,
            "writes": moves is not None,
            "position": 1,
            "ahead": [],
            "moves": None if moves is None else msgspec.json.encode(moves).decode(),
            "keep_done": keep_done,
            "succeeded": 0,
            "failed": 0,
            "released": False,
            "ask": ask,
            "stall_after": 1000,
            "continues": False,
            "patience": "5s",
            "subscriptions": [owner.held.subscription],
            "lanes": [owner.held.lane],
            "lives": [owner.held.life],
            "epochs": [owner.held.epoch],
            "revisions": [owner.held.revision],
            "positions": [1],
            "aheads": ["{}"],
        }

    async def test_rows_of_every_kind(self, postgres: PostgresKeeper, owner: Owner) -> None:
        await self.exchange_beside(postgres, owner, 10_000)

    @pytest.mark.shard("large")
    async def test_hundreds_of_thousands_of_rows(self, postgres: PostgresKeeper, owner: Owner) -> None:
        await self.exchange_beside(postgres, owner, self.MANY)

    async def exchange_beside(self, postgres: PostgresKeeper, owner: Owner, count: int) -> None:
        """Write and ask, beside `count` rows of each kind."""
        progress = postgres.progress
        assert isinstance(progress, PostgresProgress)
        exchange = progress._statements.get("exchange")
        cursor = progress._statements.get("write_cursors")
        fields = {
            "state": "waiting",
            "key": "n",
            "since": 1.0,
            "attempts": 0,
            "total": 0,
            "reason": "",
            "error": "",
        }
        moves: list[dict[str, Any]] = [
            {"position": 10, "replaces": 1, "row": {**fields, "revision": 2, "size": 1}, "required": False},
            {"position": 20, "replaces": 1, "row": None, "required": False},
            {
                "position": 9_999_999,
                "replaces": None,
                "row": {**fields, "revision": 1, "size": 1},
                "required": False,
            },
        ]
        questions: list[tuple[str, list[dict[str, Any]] | None, dict[str, Any], int]] = [
            (exchange, None, {"keys": ["hot"], "per_key": 10}, 60),
            (exchange, None, {"keys": [f"p{n}" for n in range(50)], "per_key": 1}, 700),
            (exchange, None, {"due": True}, 200),
            (exchange, None, {"heads_after": ""}, 5000),
            (exchange, None, {"heads_after": "s"}, 60),
            (exchange, None, {"unrouted_after": 0, "unrouted_limit": 10}, 60),
            (exchange, None, {"unrouted_after": 0, "unrouted_limit": 10, "routes": frozenset({"q"})}, 60),
            (exchange, moves, {}, 120),
            (exchange, moves, {"keep_done": 60}, 120),
            (cursor, moves, {}, 40),
        ]
        async with await psycopg.AsyncConnection.connect(postgres.url) as connection:
            # Plans are made, and kept, while there are no rows.
            for statement, moved, question, _ in questions * 7:
                await self.blocks(connection, statement, self.parameters(owner, moved, **question))
                await connection.rollback()
            await self.fill(connection, postgres.schema, owner.held.subscription, count)
            await connection.commit()
            for statement, moved, question, most in questions:
                found = await self.blocks(connection, statement, self.parameters(owner, moved, **question))
                await connection.rollback()
                assert found <= most, (statement, question)

    @pytest.mark.shard("large")
    async def test_some_rows_of_another_subscription(self, postgres: PostgresKeeper, owner: Owner) -> None:
        await self.write_beside_another(postgres, owner, 10_000)

    @pytest.mark.shard("large")
    async def test_rows_of_another_subscription(self, postgres: PostgresKeeper, owner: Owner) -> None:
        await self.write_beside_another(postgres, owner, self.MANY)

    async def write_beside_another(self, postgres: PostgresKeeper, owner: Owner, count: int) -> None:
        """Many rows for a lane of any subscription on the average, and none for the one that is written."""
        progress = postgres.progress
        assert isinstance(progress, PostgresProgress)
        other = await taken(progress, name="other")
        async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as connection:
            await connection.execute(
                postgres.qualified("alter table {}.deliveries set (autovacuum_enabled = off)")
            )
            await self.fill(connection, postgres.schema, other.subscription, count)
            await connection.execute(postgres.qualified("analyze {}.deliveries"))
            statement = progress._statements.get("write_cursors")
            for _ in range(2):
                # The first makes the plan, for which it reads the catalog.
                async with connection.transaction(force_rollback=True):
                    blocks = await self.blocks(connection, statement, self.parameters(owner, []))
            assert blocks <= 60

    @pytest.mark.shard("large")
    async def test_how_one_stands_beside_some_rows(self, postgres: PostgresKeeper, owner: Owner) -> None:
        await self.look_beside(postgres, owner, 10_000, revisions=200)

    @pytest.mark.shard("large")
    async def test_how_a_subscription_stands(self, postgres: PostgresKeeper, owner: Owner) -> None:
        await self.look_beside(postgres, owner, self.MANY, revisions=1000)

    async def look_beside(self, postgres: PostgresKeeper, owner: Owner, count: int, *, revisions: int) -> None:
        """Whatever there is of rows, and of old revisions that nobody could remove yet."""
        progress = postgres.progress
        assert isinstance(progress, PostgresProgress)
        statement = progress._statements.get("standings")
        one, every = {"group": "g", "name": "s"}, {"group": None, "name": None}
        await progress.declare([definition(f"other-{number}", lanes=16) for number in range(20)])
        async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as connection:
            # To compile a plan takes seconds, and reads nothing.
            await connection.execute("set jit = off")
            for _ in range(7):
                before = await self.blocks(connection, statement, one)
                await self.blocks(connection, statement, every)
            async with transaction(postgres, "repeatable read"):
                await self.fill(connection, postgres.schema, owner.held.subscription, count)
                for _ in range(revisions):
                    await owner.swap(at(1))
                await owner.swap(at(2), asking(due=True))
                assert await self.blocks(connection, statement, one) <= before + 20
                assert await self.blocks(connection, statement, every) <= 3000

    async def fill(self, connection: Connection, schema: str, subscription: int, count: int = MANY) -> None:
        """Many that wait for one key, many keys with a parked head, many that are due, many unrouted."""
        kinds = [
            ("waiting", "'hot'", "null", "null"),
            ("parked", "'p' || n", "null", "null"),
            ("retrying", "'r' || n", "to_timestamp(1000 + n)", "null"),
            ("unrouted", "null", "null", "'full'"),
            ("unrouted", "null", "null", "'q'"),
        ]
        for number, (state, key, due, route) in enumerate(kinds):
            await connection.execute(
                f"""
                insert into "{schema}".deliveries
                    (subscription, position, lane, attempts, total, size, revision, since, state, key, due, route)
                select %s, {number} * 100000 + n, 0, 0, 0, 1, 1, now(), '{state}', {key}, {due}, {route}
                from generate_series(1, {5 if route == "'q'" else count}) n
                """.encode(),
                [subscription],
            )

    @pytest.mark.shard("large")
    async def test_a_snapshot_held_open_for_some_writes(self, postgres: PostgresKeeper, owner: Owner) -> None:
        await self.write_under_a_snapshot(postgres, owner, 800)

    @pytest.mark.shard("large")
    async def test_a_snapshot_held_open(self, postgres: PostgresKeeper, owner: Owner) -> None:
        await self.write_under_a_snapshot(postgres, owner, 3000)

    async def write_under_a_snapshot(self, postgres: PostgresKeeper, owner: Owner, count: int) -> None:
        """Nothing that was removed is walked past."""
        progress = postgres.progress
        assert isinstance(progress, PostgresProgress)
        statement = progress._statements.get("write_cursors")
        take = postgres.qualified("select {}.take(%(subscription)s, '{{0}}')")
        async with transaction(postgres, "repeatable read"), await postgres.connect() as connection:
            for _ in range(200):
                await owner.swap(at(1))
            before = await self.blocks(connection, statement, self.parameters(owner, []))
            await connection.rollback()
            taking = await self.blocks(connection, take, {"subscription": owner.held.subscription})
            await connection.rollback()
            for _ in range(count):
                await owner.swap(at(1))
            after = await self.blocks(connection, statement, self.parameters(owner, []))
            await connection.rollback()
            assert after <= before + 10
            assert await self.blocks(connection, take, {"subscription": owner.held.subscription}) <= taking + 10
