"""Claims and heads in PostgreSQL: what the functions of the schema promise, one by one."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import uuid4

import msgspec
import psycopg
import pytest

from milepost.dispatch import Cursor, Retry
from milepost.postgres.connections import executor_of
from milepost.progress.deliveries import Claim, ClaimReply, ClaimRequest, ClaimSettlement, NotPulled, ScannedLog
from milepost.progress.postgres.deliveries import ClaimStatements, PostgresClaims
from milepost.progress.postgres.operate import PostgresConsumerSubscriptions
from milepost.progress.protocol import SubscriptionDefinition
from progress.keepers import PostgresKeeper
from support import until_somebody_waits_for

SETTINGS: dict[str, Any] = {
    "ordered_by": None,
    "on_park": "continue",
    "retry": {"attempts": 3, "delay": 0, "factor": 2, "max_delay": 240, "jitter": 0},
    "timeout": 30,
    "tracking": "all",
    "keep_done": None,
    "stall_after": 1_000_000,
    "max_waiting": 1_000_000,
}


class Table:
    """A subscription to pull from, without a log."""

    def __init__(self, keeper: PostgresKeeper) -> None:
        self.keeper = keeper
        self.statements = ClaimStatements(keeper.schema)
        self.pulling = self.statements.within(keeper.database)
        self.id = 0

    async def create(self, **settings: Any) -> "Table":
        stored = SETTINGS | settings
        definition = SubscriptionDefinition(
            group="g", name="s", lanes=1, selects="all", orders=stored["ordered_by"] or "none", start=Cursor(0)
        )
        created = PostgresConsumerSubscriptions(self.keeper.database, self.keeper.schema)
        await created.create(definition, stored, "update")
        opened = await created.find("g", "s")
        assert opened is not None
        self.id = opened.id
        return self

    async def pull(self, limit: int = 10, connection: Any = None, scanned: ScannedLog | None = None) -> ClaimReply:
        request = ClaimRequest(group="g", name="s", limit=limit, bytes=2**23, seconds=30, consumer="me")
        pulling = self.pulling if connection is None else self.statements.on(connection)
        told = await pulling.pull(request, scanned=scanned)
        assert isinstance(told, ClaimReply)
        return told

    async def convert(self, keys: Sequence[str | None], limit: int = 10) -> ClaimReply:
        """The next positions of the log, with these keys."""
        at = (await self.pull(limit=1)).position if keys else 0
        positions = list(range(at + 1, at + len(keys) + 1))
        given = None if None in keys else [key for key in keys if key is not None]
        return await self.pull(limit, scanned=page(at, positions, given))

    async def settle(self, reply: ClaimReply, positions: Sequence[int], outcome: Any = "ack") -> set[int]:
        settlements = [ClaimSettlement(Claim(reply.id, position, reply.claim), outcome) for position in positions]
        outcomes = await self.pulling.settle(settlements)
        assert outcomes is not None
        return outcomes.held

    async def rows(self) -> dict[int, tuple[str, bool | None]]:
        found = await self.keeper.run('select "position", state, head from {}.deliveries order by 1')
        return {position: (state, head) for position, state, head in found}


def page(at: int, positions: Sequence[int], keys: Sequence[str] | None = None, **changes: Any) -> ScannedLog:
    scanned = ScannedLog(
        number=1,
        epoch=0,
        above=at,
        position=max(positions, default=at + 1),
        life=None,
        positions=positions,
        sizes=[100] * len(positions),
        keys=keys,
    )
    return msgspec.structs.replace(scanned, **changes)


def taken(reply: ClaimReply) -> list[int]:
    return sorted([row.position for row in reply.ready] + (reply.converted or []))


@pytest.fixture(params=["embedded", pytest.param("postgresql_15", marks=pytest.mark.shard("oldest"))])
def database_url(request: pytest.FixtureRequest) -> str:
    """Each of the servers in turn."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
async def table(postgres: PostgresKeeper) -> Table:
    return Table(postgres)


@pytest.fixture
async def connection(table: Table) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    async with await table.keeper.connect() as connection:
        yield connection
        await connection.rollback()


class TestConverting:
    async def test_rows_and_cursor_come_together(self, table: Table) -> None:
        await table.create()
        reply = await table.convert([None] * 5, limit=3)
        assert (taken(reply), reply.outcome) == ([1, 2, 3], "converted")
        # It ends where there is no more room: nothing is left for which a row would have to be changed again.
        assert reply.position == 3
        assert await table.rows() == dict.fromkeys((1, 2, 3), ("running", True))

    async def test_who_comes_too_late_changes_nothing(self, table: Table) -> None:
        await table.create()
        await table.convert([None] * 3)
        for scanned in (page(0, [1, 2, 3]), page(5, [6])):
            reply = await table.pull(scanned=scanned)
            assert (taken(reply), reply.outcome, reply.position) == ([], "lost", 3)
        assert len(await table.rows()) == 3

    async def test_a_page_is_of_use_where_the_cursor_is_within(self, table: Table) -> None:
        await table.create()
        await table.convert([None] * 3)
        reply = await table.pull(scanned=page(1, [2, 3, 4, 5]))
        assert (taken(reply), reply.position) == ([4, 5], 5)

    @pytest.mark.parametrize("changes", [{"number": 2}, {"epoch": 1}, {"life": "0" * 32}])
    async def test_a_page_that_was_read_by_something_else(self, table: Table, changes: dict[str, Any]) -> None:
        await table.create()
        await table.pull()
        reply = await table.pull(scanned=page(0, [1], **changes))
        assert (reply.outcome, reply.position) == ("stale", 0)
        assert await table.rows() == {}

    async def test_nothing_happens_behind_a_barrier(self, table: Table) -> None:
        await table.create()
        await table.pull()
        await table.keeper.run("update {}.subscriptions set barrier = 'b', barrier_until = {}.clock() + '1 hour'")
        reply = await table.pull(scanned=page(0, [1]))
        assert (reply.rests, taken(reply), reply.position) == (True, [], 0)

    async def test_nor_if_the_barrier_came_a_moment_ago(self, table: Table) -> None:
        await table.create()
        await table.pull()
        for change in (
            "barrier = 'b', barrier_until = {}.clock() + '1 hour'",
            "barrier = null, status = 'paused'",
        ):
            await table.keeper.run("update {}.subscriptions set " + change)
            [[outcome]] = await table.keeper.run(
                "select outcome from {}.convert(%(id)s, %(settings)s::jsonb, "
                """'{{"number": 1, "epoch": 0, "above": 0, "position": 1, "size": 9}}', """
                "array[1]::bigint[], array[9], null, 10, 100, gen_random_uuid(), {}.clock(), 'me', true)",
                id=table.id,
                settings=msgspec.json.encode(SETTINGS).decode(),
            )
            assert outcome == "lost"

    async def test_who_is_about_to_set_a_barrier_is_not_waited_for(
        self, table: Table, connection: psycopg.AsyncConnection[Any]
    ) -> None:
        await table.create()
        await table.pull()
        await connection.execute(table.keeper.qualified("select from {}.subscriptions for no key update").encode())
        reply = await table.pull(scanned=page(0, [1]))
        assert (reply.outcome, taken(reply)) == ("lost", [])

    async def test_a_loser_only_claims(self, table: Table, connection: psycopg.AsyncConnection[Any]) -> None:
        await table.create()
        first = await table.convert([None] * 2)
        await table.settle(first, [1], "retry")
        await connection.execute(table.keeper.qualified("select from {}.lanes for no key update").encode())
        reply = await table.pull(scanned=page(2, [3, 4]))
        assert (taken(reply), reply.outcome) == ([1], "lost")

    async def test_one_without_anything_waits_its_turn(
        self, table: Table, connection: psycopg.AsyncConnection[Any]
    ) -> None:
        await table.create()
        await table.pull()
        await connection.execute(table.keeper.qualified("select from {}.lanes for no key update").encode())
        patient = asyncio.create_task(table.pull(scanned=page(0, [1, 2])))
        await until_somebody_waits_for(connection)
        await connection.rollback()
        assert taken(await patient) == [1, 2]

    async def test_old_revisions_go(self, table: Table) -> None:
        await table.create()
        for _ in range(140):
            reply = await table.convert([None])
            await table.settle(reply, taken(reply))
        [[revisions]] = await table.keeper.run("select count(*) from {}.cursors")
        assert revisions < 70


class TestHeads:
    async def test_the_first_of_each_key(self, table: Table) -> None:
        await table.create(ordered_by="stream")
        reply = await table.convert(["a", "a", "b", "a"])
        assert taken(reply) == [1, 3]
        assert await table.rows() == {
            1: ("running", True),
            2: ("waiting", False),
            3: ("running", True),
            4: ("waiting", False),
        }

    async def test_nobody_waits_for_a_key_that_somebody_has(
        self, table: Table, connection: psycopg.AsyncConnection[Any]
    ) -> None:
        """A settlement that is under way has the key: whether the new row may run is not known then."""
        await table.create(ordered_by="stream")
        reply = await table.convert(["a"])
        settlements = [ClaimSettlement(Claim(reply.id, 1, reply.claim), "ack")]
        await table.statements.on(connection).settle(settlements)
        reply = await table.convert(["a", "b"])
        assert taken(reply) == [3]
        assert (await table.rows())[2] == ("waiting", None)
        assert taken(await table.pull()) == []
        await connection.commit()
        # Whoever pulls next looks.
        assert taken(await table.pull()) == [2]

    async def test_nor_for_a_claim_that_is_under_way(
        self, table: Table, connection: psycopg.AsyncConnection[Any]
    ) -> None:
        await table.create(ordered_by="stream")
        reply = await table.convert(["a"])
        await table.settle(reply, [1], "retry")
        claimed = await table.pull(connection=connection)
        assert taken(claimed) == [1]
        assert taken(await table.convert(["a", "b"])) == [3]
        assert taken(await table.pull()) == []
        await connection.rollback()
        assert taken(await table.pull()) == [1]

    async def test_not_even_to_place_what_could_not_be_placed_before(
        self, table: Table, connection: psycopg.AsyncConnection[Any]
    ) -> None:
        await table.create(ordered_by="stream")
        reply = await table.convert(["a", "a"])
        await table.settle(reply, [1], "retry")
        await table.keeper.run('update {}.deliveries set head = null where "position" = 2')
        assert taken(await table.pull(connection=connection)) == [1]
        assert taken(await table.pull()) == []
        assert (await table.rows())[2] == ("waiting", None)
        await connection.commit()
        await table.pull()
        assert (await table.rows())[2] == ("waiting", False)

    async def test_a_decision_waits_for_a_claim_that_is_under_way(
        self, table: Table, connection: psycopg.AsyncConnection[Any]
    ) -> None:
        """Otherwise two of one key could run: the one that is claimed and the one that a person retries."""
        await table.create(ordered_by="stream", retry=SETTINGS["retry"] | {"attempts": 1})
        reply = await table.convert(["a", "a"])
        await table.settle(reply, [1], "retry")
        assert await table.rows() == {1: ("parked", False), 2: ("waiting", True)}
        assert taken(await table.pull(connection=connection)) == [2]
        decision = asyncio.create_task(
            table.keeper.run(
                "select * from {}.decide(%(id)s, array[1], array[null], array[null]::bigint[], 'retrying', "
                "array['parked'], true)",
                id=table.id,
            )
        )
        await until_somebody_waits_for(connection)
        await connection.commit()
        await decision
        assert await table.rows() == {1: ("retrying", False), 2: ("running", True)}

    async def test_more_keys_than_locks(self, table: Table) -> None:
        await table.create(ordered_by="stream")
        keys = [f"key-{number}" for number in range(2000)]
        reply = await table.convert(keys * 2, limit=3000)
        assert taken(reply) == list(range(1, 2001))
        [[locks]] = await table.keeper.run("select count(*) from pg_locks where locktype = 'advisory'")
        assert locks == 0
        assert len(await table.settle(reply, taken(reply))) == 2000
        assert taken(await table.pull(limit=3000)) == list(range(2001, 4001))

    async def test_rows_of_another_order_get_their_heads(self, table: Table) -> None:
        await table.create()
        reply = await table.convert([None] * 3)
        await table.settle(reply, [1, 2, 3], "retry")
        await table.keeper.run("update {}.deliveries set key = 'a'")
        await table.create(ordered_by="stream", max_waiting=7)
        await table.keeper.run("update {}.subscriptions set definition = definition")
        await table.keeper.run("update {}.subscriptions set headed = 'another'")
        assert taken(await table.pull()) == [1]
        assert await table.rows() == {1: ("running", True), 2: ("retrying", False), 3: ("retrying", False)}


class TestCost:
    """With a hundred thousand rows, by plans that were made when there was none."""

    @pytest.fixture(params=["embedded", pytest.param("postgresql_15", marks=pytest.mark.shard("oldest"))])
    def database_url(self, request: pytest.FixtureRequest) -> str:
        """Both servers: each plans by itself."""
        url: str = request.getfixturevalue(f"{request.param}_url")
        return url

    @pytest.fixture
    async def session(self, table: Table) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        async with await psycopg.AsyncConnection.connect(table.keeper.url, autocommit=True) as session:
            yield session

    @pytest.mark.shard("large", fast=["embedded-stream"])
    @pytest.mark.parametrize("ordered_by", [None, "stream"])
    async def test_it_is_the_same_with_100_000_rows(
        self, table: Table, session: psycopg.AsyncConnection[Any], ordered_by: str | None
    ) -> None:
        await table.create(ordered_by=ordered_by)
        await self._work(table, session, at=0, ordered=ordered_by is not None)
        await table.keeper.run(
            """insert into {}.deliveries
                   (subscription, "position", lane, attempts, total, size, revision, since, due, state, key, head)
               select %(id)s, n + 1000, 0, 0, 0, 100, 1, {}.clock(),
                      case when n %% 3 = 0 then {}.clock() + interval '1 day' end,
                      case n %% 3 when 0 then 'retrying' else 'waiting' end,
                      case when %(ordered)s then 'k' || n %% 7 end, not %(ordered)s or n <= 7
               from generate_series(1, 100000) n""",
            id=table.id,
            ordered=ordered_by is not None,
        )
        await table.keeper.run('update {}.cursors set "position" = 200000')
        for kind, (scanned, fetched) in (
            await self._work(table, session, at=200_000, ordered=ordered_by is not None)
        ).items():
            assert scanned == 0, kind
            assert fetched < 300, (kind, fetched)

    async def _work(
        self, table: Table, session: psycopg.AsyncConnection[Any], *, at: int, ordered: bool
    ) -> dict[str, tuple[int, int]]:
        """Everything that is done all day, ten times; what it reads of the table at most."""
        # The parts of its transactions are measured; each is as short as our own.
        pulling = PostgresClaims(table.statements, executor_of(session), own=True)
        costs = dict[str, tuple[int, int]]()

        async def measured(kind: str, call: Any) -> Any:
            async with session.transaction():
                before = await _read(session, table.keeper.schema)
                result = await call
                after = await _read(session, table.keeper.schema)
            cost = after[0] - before[0], after[1] - before[1]
            costs[kind] = max(costs.get(kind, (0, 0)), cost)
            return result

        request = ClaimRequest(group="g", name="s", limit=10, bytes=2**23, seconds=30, consumer="me")
        for _ in range(10):
            positions = list(range(at + 1, at + 11))
            keys = [f"new-{position % 3}" for position in positions] if ordered else None
            scanned = page(at, positions, keys)
            reply = await measured("pull", pulling.pull(request, scanned=scanned))
            at = reply.position
            claims = [Claim(reply.id, position, reply.claim) for position in taken(reply)]
            half = len(claims) // 2
            await measured("ack", pulling.settle([ClaimSettlement(c, "ack") for c in claims[:half]]))
            await measured("fail", pulling.settle([ClaimSettlement(c, "retry") for c in claims[half:]]))
            await measured("expire", pulling.expire(table.id))
        return costs


async def _read(session: psycopg.AsyncConnection[Any], schema: str) -> tuple[int, int]:
    cursor = await session.execute(
        "select seq_tup_read, idx_tup_fetch from pg_stat_xact_user_tables "
        "where schemaname = %s and relname = 'deliveries'",
        [schema],
    )
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


class TestRetrying:
    @pytest.fixture
    def database_url(self, embedded_url: str) -> str:
        """One server is enough: nothing here is about PostgreSQL."""
        return embedded_url

    @pytest.mark.shard("variants", fast=["policy0", "policy3", "policy6"])
    @pytest.mark.parametrize(
        "policy",
        [
            Retry(jitter=0),
            Retry(jitter=0, attempts=10_000, delay=0.001, factor=1.5, max_delay=1e9),
            Retry(jitter=0, attempts=10_000, factor=1_000_000, delay=1e-300, max_delay=3_162_240_000),
            Retry(jitter=0, attempts=10_000, factor=1),
            Retry(jitter=0, delay=0),
            Retry(jitter=0, max_delay=0),
            Retry(jitter=0, delay=500, max_delay=1),
            Retry.never,
        ],
    )
    async def test_the_schema_waits_as_the_program_does(self, postgres: PostgresKeeper, policy: Retry) -> None:
        stored = msgspec.json.encode(
            {name: getattr(policy, name) for name in ("attempts", "delay", "factor", "max_delay", "jitter")}
        ).decode()
        for attempts in (1, 2, 3, 10, 11, 100, 5000, 9999, 10_000):
            [[wait]] = await postgres.run(
                "select {}.retry_wait(%(policy)s::jsonb, %(attempts)s::integer)", policy=stored, attempts=attempts
            )
            expected = policy.wait(attempts, lambda: 0.5)
            assert wait == (expected if expected is None else pytest.approx(expected, rel=1e-6))

    async def test_with_jitter(self, postgres: PostgresKeeper) -> None:
        stored = '{"attempts": 3, "delay": 10, "factor": 2, "max_delay": 240, "jitter": 0.1}'
        rows = await postgres.run(
            "select {}.retry_wait(%(policy)s::jsonb, 1) from generate_series(1, 200)", policy=stored
        )
        waits = [row[0] for row in rows]
        assert min(waits) >= 9
        assert max(waits) <= 11
        assert max(waits) - min(waits) > 1

    @pytest.mark.parametrize(("seconds", "expected"), [(-5.0, 0), (1e300, 3_162_240_000), (float("inf"), 3.2e9)])
    async def test_moments_that_no_clock_knows(
        self, postgres: PostgresKeeper, seconds: float, expected: float
    ) -> None:
        [[found]] = await postgres.run(
            "select extract(epoch from {}.moment(%(seconds)s::float8) - {}.clock())::float8", seconds=seconds
        )
        assert found == pytest.approx(expected, rel=0.02, abs=60)


@pytest.mark.parametrize("ordered_by", [None, "stream"])
async def test_a_claim_that_is_another_s_settles_nothing(table: Table, ordered_by: str | None) -> None:
    await table.create(ordered_by=ordered_by)
    reply = await table.convert(["a"])
    other = msgspec.structs.replace(reply, claim=uuid4().hex)
    assert await table.settle(other, [1]) == set()
    assert [state for state, _ in (await table.rows()).values()] == ["running"]
    assert len(await table.settle(reply, [1])) == 1
    assert await table.rows() == {}


async def test_who_asks_again_is_told_what_was_refused(table: Table) -> None:
    await table.create()
    reply = await table.convert([None, None])
    settlements = [
        ClaimSettlement(Claim(reply.id, 1, reply.claim), "ack"),
        ClaimSettlement(Claim(reply.id, 2, uuid4().hex), "ack"),
    ]
    request = uuid4()
    first, second = [await table.pulling.settle(settlements, id=request) for _ in range(2)]
    assert first is not None
    assert second is not None
    assert (first.again, second.again) == (False, True)
    assert first.held == second.held
    assert len(first.held) == 1


async def test_what_is_not_for_pulling(table: Table) -> None:
    request = ClaimRequest(group="g", name="s", limit=1, bytes=1, seconds=None, consumer="me")
    assert await table.pulling.pull(request) is None
    await table.create(tracking="failures")
    told = await table.pulling.pull(request)
    assert told == NotPulled(in_code=False, tracking="failures")


async def test_two_who_settle_in_opposite_order_do_not_wait_for_ever(table: Table) -> None:
    await table.create(ordered_by="stream")
    for _ in range(5):
        reply = await table.convert([f"k{number}" for number in range(50)], limit=50)
        positions = taken(reply)
        held = await asyncio.gather(
            table.settle(reply, positions), table.settle(reply, positions[::-1]), table.settle(reply, positions)
        )
        assert sorted(map(len, held)) == [0, 0, 50]
