"""Deliveries for a person: which are meant, what they say, what a decision does to them, and what it costs."""

import asyncio
from collections.abc import Iterable
from typing import Any

import psycopg
import pytest

from milepost.dispatch import RowChange, State
from milepost.postgres.pool import Connection
from milepost.progress.deliveries import Decided, Decision, DeliveryChoice, SeenDelivery
from milepost.progress.postgres.deliveries import PostgresDeliveries
from progress import test_postgresql
from progress.keepers import PostgresKeeper
from progress.lanes import Owner, held_positions, row, taken
from progress.test_postgresql import blocked, transaction

EVERY = [
    row(1, "parked", "a", attempts=3, total=7, reason="Odd", error="Traceback …"),
    row(2, "retrying", "b", attempts=2, total=2, due=5000.0, reason="odd again"),
    row(3, "waiting", "a"),
    row(4, "unrouted", "c", route="r"),
    row(5, "running", "d"),
    row(6, "skipped", "e"),
]


@pytest.fixture(params=["embedded", pytest.param("postgresql_15", marks=pytest.mark.shard("oldest"))])
def database_url(request: pytest.FixtureRequest) -> str:
    """Each of the servers in turn."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
async def owner(postgres: PostgresKeeper) -> Owner:
    """The owner of lane 0 of a new subscription."""
    return Owner(postgres.progress, await taken(postgres.progress))


@pytest.fixture
def deliveries(postgres: PostgresKeeper, owner: Owner) -> PostgresDeliveries:
    """Its deliveries."""
    return PostgresDeliveries(postgres.database, postgres.schema, owner.held.subscription)


def choice(*states: str, **more: Any) -> DeliveryChoice:
    return DeliveryChoice(states=frozenset(map(State, states or list(State))), **more)


async def chosen(deliveries: PostgresDeliveries, choice: DeliveryChoice) -> list[int]:
    return [each.position async for seen in deliveries.chosen(choice) for each in seen]


def named(*positions: int) -> list[SeenDelivery]:
    return list(map(SeenDelivery, positions))


async def stored(postgres: PostgresKeeper) -> dict[int, tuple[Any, ...]]:
    """Of each row: state, attempts, total, revision, and whether it is due and since now."""
    rows = await postgres.run(
        "select position, state, attempts, total, revision, due is not null and due = since "
        "from {}.deliveries order by 1"
    )
    return {position: tuple(rest) for position, *rest in rows}


async def acted(postgres: PostgresKeeper) -> int:
    [[found]] = await postgres.run("select acted from {}.subscriptions")
    return int(found)


class TestChoices:
    async def test_by_state(self, deliveries: PostgresDeliveries, owner: Owner) -> None:
        await owner.add(*EVERY)
        assert await chosen(deliveries, choice()) == [1, 2, 3, 4, 5, 6]
        for number, state in enumerate(("parked", "retrying", "waiting", "unrouted", "running", "skipped"), 1):
            assert await chosen(deliveries, choice(state)) == [number]
        assert await chosen(deliveries, choice("parked", "unrouted")) == [1, 4]

    async def test_by_position_key_and_reason(self, deliveries: PostgresDeliveries, owner: Owner) -> None:
        await owner.add(*EVERY)
        assert await chosen(deliveries, choice(after=2, up_to=5)) == [3, 4, 5]
        assert await chosen(deliveries, choice(key="a")) == [1, 3]
        assert await chosen(deliveries, choice(reason="oDd")) == [1, 2]
        assert await chosen(deliveries, choice("retrying", reason="odd")) == [2]
        assert await chosen(deliveries, choice(reason="%")) == []

    async def test_another_subscription_s_are_not_meant(
        self, postgres: PostgresKeeper, deliveries: PostgresDeliveries, owner: Owner
    ) -> None:
        other = Owner(postgres.progress, await taken(postgres.progress, name="other"))
        await other.add(*EVERY)
        others = PostgresDeliveries(postgres.database, postgres.schema, other.held.subscription)
        assert await chosen(deliveries, choice()) == []
        assert await deliveries.at([1, 2]) == []
        assert "no delivery" in (await deliveries.decide(Decision.SKIP, named(1))).refused[1]
        await owner.add(row(1, "parked"))
        assert (await deliveries.decide(Decision.SKIP, named(1))).moved == 1
        assert [one.state for one in await others.at([1, 2])] == ["parked", "retrying"]

    async def test_few_among_many(
        self,
        postgres: PostgresKeeper,
        deliveries: PostgresDeliveries,
        owner: Owner,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A statement looks through a bounded number of rows, and none is missed between two."""
        monkeypatch.setattr("milepost.progress.postgres.deliveries.CHOOSE_SPAN_ROWS", 7)
        states = ["parked" if position % 10 == 0 else "waiting" for position in range(1, 64)]
        await owner.add(*(row(position, state) for position, state in enumerate(states, 1)))
        assert await chosen(deliveries, choice("parked")) == [10, 20, 30, 40, 50, 60]
        assert await chosen(deliveries, choice("waiting", "parked")) == list(range(1, 64))


class TestWhatTheySay:
    async def test_all_that_is_stored(self, deliveries: PostgresDeliveries, owner: Owner) -> None:
        await owner.add(*EVERY)
        parked, retrying, *_ = await deliveries.at([1, 2, 99])
        assert (parked.position, parked.state, parked.key) == (1, "parked", "a")
        assert (parked.attempts, parked.total) == (3, 7)
        assert (parked.reason, parked.error) == ("Odd", "Traceback …")
        assert (parked.since.timestamp(), parked.due) == (1000.0, None)
        assert retrying.due is not None
        assert retrying.due.timestamp() == 5000.0

    async def test_who_waits_behind_whom(self, deliveries: PostgresDeliveries, owner: Owner) -> None:
        await owner.add(row(1, "parked", "a"), row(2, "waiting", "a"), row(3, "waiting", "a"))
        await owner.add(row(4, "retrying", "b"), row(5, "waiting", "b"), row(6, "parked", None))
        await owner.add(row(7, "waiting", "c"), row(8, "waiting", "c"), row(9, "skipped", "a"))
        # With on_park="continue" a parked one holds nothing: what is retried does.
        await owner.add(row(10, "parked", "d"), row(11, "retrying", "d"), row(12, "waiting", "d"))
        found = {one.position: one.waiting_behind for one in await deliveries.at(list(range(1, 13)))}
        assert found == {1: 2, 2: 1, 3: 1, 4: 1, 5: 4, 6: 0, 7: None, 8: 7, 9: None, 10: 1, 11: 1, 12: 11}
        assert [one.waiting_behind for one in await deliveries.at([3])] == [1]
        assert [one.waiting_behind for one in await deliveries.at([1])] == [2]

    async def test_the_same_key_in_another_lane_is_another(
        self, postgres: PostgresKeeper, deliveries: PostgresDeliveries, owner: Owner
    ) -> None:
        [held] = await postgres.progress.take(owner.held.subscription, [1])
        await owner.add(row(1, "parked", "a"), row(3, "waiting", "a"))
        await Owner(postgres.progress, held).add(row(2, "parked", "a"))
        assert [one.waiting_behind for one in await deliveries.at([1, 2, 3])] == [1, 0, 1]


class TestDecisions:
    async def test_retry(self, postgres: PostgresKeeper, deliveries: PostgresDeliveries, owner: Owner) -> None:
        await owner.add(*EVERY)
        before = await stored(postgres)
        decided = await deliveries.decide(Decision.RETRY, named(6, 5, 4, 3, 2, 1, 9))
        assert decided.moved == 2
        assert {position: why.partition(":")[0] for position, why in decided.refused.items()} == {
            3: "it waits behind another of its key",
            4: "no consumer takes it",
            5: "it is running",
            6: "it was skipped before",
            9: "it has no delivery",
        }
        after = await stored(postgres)
        assert after[1] == ("retrying", 0, 7, 2, True)
        assert after[2] == ("retrying", 0, 2, 2, True)
        assert {n: after[n] for n in (3, 4, 5, 6)} == {n: before[n] for n in (3, 4, 5, 6)}

    async def test_skip(self, postgres: PostgresKeeper, deliveries: PostgresDeliveries, owner: Owner) -> None:
        await owner.add(*EVERY)
        before = await stored(postgres)
        decided = await deliveries.decide(Decision.SKIP, named(1, 2, 3, 4, 5, 6, 1))
        assert (decided.moved, sorted(decided.refused)) == (4, [5, 6])
        after = await stored(postgres)
        assert after[1] == ("skipped", 3, 7, 2, True)
        assert [after[n][0] for n in (2, 3, 4)] == ["skipped"] * 3
        assert {n: after[n] for n in (5, 6)} == {n: before[n] for n in (5, 6)}

    async def test_its_owner_sees_it(self, deliveries: PostgresDeliveries, owner: Owner) -> None:
        await owner.add(row(1, "parked", "a"), row(2, "waiting", "a"), row(3, "parked", "b"))
        await deliveries.decide(Decision.RETRY, named(3))
        await deliveries.decide(Decision.SKIP, named(1))
        answer = await owner.ask(due=True, now=1e11, keys=["a", "b"])
        assert [(one.row.position, one.row.state) for one in answer.due] == [(1, "skipped"), (3, "retrying")]
        assert held_positions(answer) == {"a": ([2], False), "b": ([3], False)}
        assert (answer.counts.waiting, answer.counts.retrying) == (1, 1)
        # What it knew of the row is outdated.
        assert list((await owner.move(RowChange(3, 1, None))).moved) == [False]

    async def test_workers_are_told_once_for_each_transaction(
        self, postgres: PostgresKeeper, deliveries: PostgresDeliveries, owner: Owner
    ) -> None:
        await owner.add(row(1, "parked"), row(2, "parked"), row(3, "parked"))
        async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as listener:
            await listener.execute(f'listen "{postgres.schema}"'.encode())
            before = await acted(postgres)
            await deliveries.decide(Decision.RETRY, named(1, 2))
            assert await acted(postgres) == before + 1
            async for notification in listener.notifies(timeout=40, stop_after=1):
                assert notification.payload == "act"
            await deliveries.decide(Decision.RETRY, named(9))
            assert await acted(postgres) == before + 1

    async def test_an_owner_that_is_at_it_comes_first(
        self, postgres: PostgresKeeper, deliveries: PostgresDeliveries, owner: Owner
    ) -> None:
        """What it writes is what the decision is about: one is done, one has failed again, one runs."""
        rows = [row(n, "retrying", f"k{n}", attempts=2, total=2) for n in (1, 2, 3)]
        await owner.add(*rows)
        async with transaction(postgres) as connection:
            await owner.move(
                RowChange.of(1, rows[0], None),
                RowChange.of(2, rows[1], rows[1].changed(state=State.PARKED, attempts=3, total=3)),
                RowChange.of(3, rows[2], rows[2].changed(state=State.RUNNING)),
                connection=connection,
            )
            waiting = asyncio.create_task(deliveries.decide(Decision.RETRY, named(1, 2, 3)))
            await blocked(postgres)
            await connection.commit()
            decided = await waiting
        assert (decided.moved, sorted(decided.refused)) == (1, [1, 3])
        assert "no delivery" in decided.refused[1]
        assert "running" in decided.refused[3]
        after = await stored(postgres)
        assert after[2] == ("retrying", 0, 3, 3, True)
        assert after[3][:4] == ("running", 2, 2, 2)

    async def test_an_owner_that_waits_for_each_other_s_rows(
        self, postgres: PostgresKeeper, deliveries: PostgresDeliveries, owner: Owner
    ) -> None:
        """PostgreSQL ends one of two that wait in a circle; a decision is then tried again."""
        await owner.add(row(1, "parked", "a"), row(2, "parked", "b"))
        lock = f'select from "{postgres.schema}".deliveries where position = %s for update'.encode()
        async with transaction(postgres) as connection:
            # So that it is the person who is ended.
            await connection.execute("set local deadlock_timeout = '60s'")
            await connection.execute(lock, [2])
            waiting = asyncio.create_task(deliveries.decide(Decision.RETRY, named(1, 2)))
            await blocked(postgres)
            await connection.execute(lock, [1])
            await connection.commit()
            assert (await waiting).moved == 2

    async def test_two_people_at_once(self, postgres: PostgresKeeper, owner: Owner) -> None:
        await owner.add(*(row(n, "parked", f"k{n}") for n in range(1, 201)))
        people = [
            PostgresDeliveries(await postgres.other_database(), postgres.schema, owner.held.subscription)
            for _ in range(4)
        ]

        async def skip(person: PostgresDeliveries) -> Iterable[Decided]:
            return [await person.decide(Decision.SKIP, named(*range(n, n + 20))) for n in range(1, 201, 20)]

        decided = [one for found in await asyncio.gather(*map(skip, people)) for one in found]
        assert sum(one.moved for one in decided) == 200
        assert sum(len(one.refused) for one in decided) == 600
        assert {revision for *_, revision, _ in (await stored(postgres)).values()} == {2}


class TestCosts:
    """With many rows of a kind each statement reads what it needs, by an index; in the shard `large` 100,000."""

    @pytest.fixture(params=["embedded", pytest.param("postgresql_15", marks=pytest.mark.shard("oldest"))])
    def database_url(self, request: pytest.FixtureRequest) -> str:
        """Both servers: each plans by itself."""
        url: str = request.getfixturevalue(f"{request.param}_url")
        return url

    async def plan(self, connection: Connection, statement: str, parameters: dict[str, Any]) -> dict[str, Any]:
        text: Any = "explain (analyze, buffers, format json) " + statement
        found = await (await connection.execute(text, parameters)).fetchone()
        assert found is not None
        plan: dict[str, Any] = found[0][0]["Plan"]
        return plan

    def nodes(self, plan: dict[str, Any]) -> set[tuple[str, str | None]]:
        """What is read, and by which index; of subscriptions there are few."""
        is_read = plan.get("Relation Name", "subscriptions") != "subscriptions"
        found = {(plan["Node Type"], plan.get("Index Name"))} if is_read else set()
        return found.union(*(self.nodes(child) for child in plan.get("Plans", ())))

    @pytest.mark.shard("large", fast=["embedded-False"])
    @pytest.mark.parametrize("is_planned_before", [False, True])
    async def test_rows_of_every_kind(
        self, postgres: PostgresKeeper, deliveries: PostgresDeliveries, owner: Owner, is_planned_before: bool
    ) -> None:
        await self.work_beside(postgres, deliveries, owner, 10_000, is_planned_before=is_planned_before)

    @pytest.mark.shard("large")
    @pytest.mark.parametrize("is_planned_before", [False, True])
    async def test_hundreds_of_thousands_of_rows(
        self, postgres: PostgresKeeper, deliveries: PostgresDeliveries, owner: Owner, is_planned_before: bool
    ) -> None:
        await self.work_beside(postgres, deliveries, owner, 100_000, is_planned_before=is_planned_before)

    async def work_beside(
        self,
        postgres: PostgresKeeper,
        deliveries: PostgresDeliveries,
        owner: Owner,
        count: int,
        *,
        is_planned_before: bool,
    ) -> None:
        """Choose, look and decide, beside `count` rows of each kind."""
        subscription = owner.held.subscription
        statement = deliveries._statements.get
        named = {"subscription": subscription}
        async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as connection:
            if is_planned_before:
                table = f'alter table "{postgres.schema}".deliveries set (autovacuum_enabled = false)'
                await connection.execute(table.encode())
                await connection.execute("set plan_cache_mode = force_generic_plan")
                planned: Any = statement("decide")
                first = {"positions": [1], "seen": [None], "revisions": [None]}
                decided: dict[str, Any] = {**first, "state": "retrying", "states": ["parked"], "anew": True}
                await connection.execute(planned, named | decided)
            await test_postgresql.TestCosts().fill(connection, postgres.schema, subscription, count)
            if not is_planned_before:
                await connection.execute(f'analyze "{postgres.schema}".deliveries'.encode())
            states = {"states": ["parked"], "key": None, "reason": None, "span": 10_000}
            many = list(range(100_001, 101_001))
            unseen: dict[str, list[Any]] = {"positions": many, "seen": [None] * 1000, "revisions": [None] * 1000}
            seen = {"positions": many, "seen": ["parked"] * 1000, "revisions": [1] * 1000}
            one = {name: values[:1] for name, values in unseen.items()}
            decision = {"state": "retrying", "states": ["parked", "retrying"], "anew": True}
            questions: list[tuple[str, dict[str, Any], int]] = [
                ("choose_deliveries", {**states, "after": 0, "up_to": 2**62}, 1000),
                ("choose_deliveries", {**states, "after": 120_000, "up_to": 2**62}, 1000),
                ("deliveries_at", {"positions": list(range(1, 201))}, 4000),
                ("deliveries_at", {"positions": many[:200]}, 4000),
                ("deliveries_at", {"positions": [99_999]}, 60),
                ("decide", {**one, **decision}, 60),
                ("decide", {**unseen, **decision}, 34_000),
                ("decide", {**seen, **decision}, 30_000),
            ]
            for name, parameters, most in questions[-3:] if is_planned_before else questions:
                # The first time a function reads what it is made of, too.
                for _ in range(2):
                    async with connection.transaction(force_rollback=True):
                        plan = await self.plan(connection, statement(name), {**named, **parameters})
                blocks = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
                assert blocks <= most, (name, blocks, plan)
                read = {(kind, index) for kind, index in self.nodes(plan) if kind != "CTE Scan"}
                # What a function reads is not in the plan: the blocks say enough of it.
                assert read or name == "decide", name
                assert all(kind != "Seq Scan" for kind, _ in read), (name, read)
