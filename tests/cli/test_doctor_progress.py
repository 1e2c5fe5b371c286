"""`milepost doctor` on workers, subscriptions and where progress is kept: each check finds what it is for."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep
from typing import Any

import psycopg
import pytest
from psycopg import sql

from cli.program import Outcome, Run, Start
from milepost import Message, Milepost, NewMessage, Park, Retry
from milepost.cli.checks import log as log_checks
from milepost.names import category_hash
from milepost.postgres.statements import Statements
from support import MakeMilepost

PROGRAM = """
from typing import Any
from milepost import Message, Milepost

mp = Milepost(group="shop")

@mp.subscription("invoices", category="order", lanes=2, lease=1)
async def invoice(message: Message[Any]) -> None: ...
"""

Execute = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture(autouse=True)
def notifications_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long they take."""
    monkeypatch.setattr("milepost.cli.checks.server.PROBE_TIMEOUT_SECONDS", 40.0)


@pytest.fixture
def execute(database_url: str, schema: str) -> Iterator[Execute]:
    """Runs a statement in which `{}` is the schema."""
    with psycopg.connect(database_url, autocommit=True) as connection:

        def execute(text: Any, *parameters: Any) -> list[tuple[Any, ...]]:
            name = sql.Identifier(schema)
            cursor = connection.execute(sql.SQL(text).format(*[name] * text.count("{}")), parameters or None)
            return cursor.fetchall() if cursor.description else []

        yield execute


def findings(outcome: Outcome, check: str) -> list[dict[str, Any]]:
    return [found for found in outcome.json["checks"] if found["check"] == check]


def finding(outcome: Outcome, check: str) -> dict[str, Any]:
    [found] = findings(outcome, check)
    return found


def verdicts(outcome: Outcome) -> dict[str, str]:
    """But for the tests' own server, which does without fsync and autovacuum."""
    own = ("durability", "vacuum")
    return {found["check"]: found["verdict"] for found in outcome.json["checks"] if found["check"] not in own}


@pytest.fixture
def shop(make_mp: MakeMilepost) -> Milepost:
    """A program whose handler parks what is odd."""
    mp = make_mp(group="shop")

    @mp.subscription("invoices", category="order", lanes=2)
    def invoice(message: Message[Any]) -> None:
        if message.type == "odd":
            raise Park("odd")

    return mp


@pytest.fixture
def ran(shop: Milepost) -> Milepost:
    """The same after it has handled a message."""
    with shop.sync as log:
        log.append("order-1", NewMessage("even"))
        log.run_until_idle()
    return shop


def test_all_is_well(run: Run, shop: Milepost) -> None:
    with shop.sync as log, log.running():
        log.append("order-1", NewMessage("even"))
        outcome = run("doctor", "--json")
    assert set(verdicts(outcome).values()) == {"ok"}
    assert {"progress", "schema_clock", "workers", "versions", "status", "lanes", "parked", "unrouted"} <= {
        *verdicts(outcome)
    }
    assert finding(outcome, "workers")["finding"] == "live: 1 of group shop"
    assert outcome.status == 0
    lines = run("doctor").out.splitlines()
    assert all(line.startswith(("verdict", "ok", "warning", "problem")) for line in lines)


def test_no_subscriptions_yet(run: Run) -> None:
    run("append", "a-1", "t", "1").done()
    outcome = run("doctor", "--json")
    assert (outcome.status, outcome.err) == (0, "")
    assert set(verdicts(outcome).values()) == {"ok"}
    assert finding(outcome, "lanes")["finding"] == "there are no subscriptions"
    assert finding(outcome, "workers")["finding"] == "nobody works on subscriptions now"


def test_an_older_schema(run: Run, ran: Milepost, execute: Execute) -> None:
    """What is wrong is said once, not by every check that relies on it."""
    execute("delete from {}.migrations where number = (select max(number) from {}.migrations)")
    outcome = run("doctor", "--json")
    assert outcome.status == 1
    assert {check for check, verdict in verdicts(outcome).items() if verdict == "problem"} == {"schema"}
    assert findings(outcome, "workers") == []


class TestWorkers:
    @pytest.mark.shard("processes")
    def test_one_that_was_killed(self, run: Run, start: Start, tmp_path: Path) -> None:
        (tmp_path / "shop.py").write_text(PROGRAM)
        program = start("run", "shop:mp", cwd=tmp_path)
        assert program.line() == "invoices: lanes 2, concurrency 10\n"
        run("append", "order-1", "t", "1")
        # Its lease is short: it may seem to be gone before it is.
        while "2 lanes" not in self.said(run, program, signal.SIGKILL) or program.process.poll() is None:
            pass
        outcome = run("doctor", "--json")
        found = finding(outcome, "workers")
        assert (outcome.status, found["verdict"]) == (1, "problem")
        assert f"{program.process.pid}" in found["subject"]
        assert "of group shop was last heard of" in found["finding"]
        assert "nobody else works there, so its 2 lanes stand still: start its program again" in found["finding"]
        assert "shop/invoices is served by nobody" in finding(outcome, "lanes")["finding"]
        # Whoever comes next takes its place.
        start("run", "shop:mp", cwd=tmp_path)
        while finding(run("doctor", "--json"), "workers")["verdict"] != "ok":
            pass

    def said(self, run: Run, program: Any, number: int) -> str:
        """What is found of it after a signal, which waits until it has its lanes."""
        outcome = run("doctor", "--json")
        if verdicts(outcome)["lanes"] == "ok" and program.process.poll() is None:
            program.process.send_signal(number)
        return str(finding(outcome, "workers")["finding"])

    def test_one_that_is_silent_beside_another(self, run: Run, shop: Milepost, execute: Execute) -> None:
        with shop.sync as log, log.running():
            gone = (
                "insert into {}.workers values ('gone', 'shop', 'milepost', {}.clock() - interval '5 min', "
                "'30 s') on conflict do nothing"
            )
            found = {"verdict": "ok"}
            # The other removes it now and then.
            while found["verdict"] == "ok":
                execute(gone)
                found = finding(run("doctor", "--json"), "workers")
        assert (found["verdict"], found["subject"]) == ("warning", "gone")
        assert "last heard of 5 min ago, and its lease is 30 s" in found["finding"]
        assert "it had no lane; find out why" in found["finding"]

    @pytest.mark.parametrize(
        ("group", "verdict", "said"),
        [
            ("shop", "warning", "others take its 1 lane within some seconds"),
            ("other", "problem", "nobody else works there, so its 1 lane stands still: start its program again"),
        ],
    )
    def test_only_workers_of_its_group_take_its_lanes(
        self, run: Run, ran: Milepost, execute: Execute, group: str, verdict: str, said: str
    ) -> None:
        worker = "insert into {}.workers values (%s, %s, 'milepost', {}.clock() - %s::interval, '30 s')"
        execute(worker, "gone", "shop", "5 min")
        execute(worker, "there", group, "1 s")
        execute("update {}.lanes set owner = 'gone' where lane = 0")
        found = finding(run("doctor", "--json"), "workers")
        assert (found["verdict"], found["subject"]) == (verdict, "gone")
        assert said in found["finding"]

    def test_one_of_another_version(self, run: Run, shop: Milepost, execute: Execute) -> None:
        with shop.sync as log, log.running():
            execute("update {}.workers set program = 'milepost 0.0.1'")
            found = finding(run("doctor", "--json"), "versions")
        assert (found["verdict"], found["subject"]) == ("warning", "milepost 0.0.1")
        assert found["finding"].startswith("1 worker of milepost 0.0.1, while this is milepost ")


class TestLanes:
    def test_nobody_serves_it(self, run: Run, ran: Milepost) -> None:
        outcome = run("doctor", "--json")
        found = finding(outcome, "lanes")
        assert (outcome.status, found["verdict"], found["subject"]) == (0, "warning", "shop/invoices")
        assert "served by nobody, and has nothing to do yet: start its program" in found["finding"]

    def test_nobody_serves_it_and_messages_come(self, run: Run, ran: Milepost) -> None:
        for _ in range(3):
            run("append", "order-1", "t", "1").done()
        outcome = run("doctor", "--json")
        found = finding(outcome, "lanes")
        assert (outcome.status, found["verdict"]) == (1, "problem")
        assert "shop/invoices is served by nobody, with 3 positions behind: start its program" in found["finding"]

    def test_nobody_takes_from_one_for_consumers(self, run: Run) -> None:
        run("subscriptions", "create", "shipping").done()
        run("append", "order-1", "t", "1").done()
        found = finding(run("doctor", "--json"), "lanes")
        assert found["verdict"] == "problem"
        assert "with 1 position behind: start a program that has a consumer for it" in found["finding"]

    def test_nobody_has_pulled(self, run: Run) -> None:
        """Who pulls comes and goes: that nobody is there is no problem."""
        run("subscriptions", "create", "emails", "--tracking", "all").done()
        assert finding(run("doctor", "--json"), "lanes")["verdict"] == "ok"
        run("append", "order-1", "t", "1").done()
        outcome = run("doctor", "--json")
        found = finding(outcome, "lanes")
        assert (outcome.status, found["verdict"]) == (0, "warning")
        assert "default/emails has not been pulled for the last 1 position" in found["finding"]

    def test_nobody_serves_it_and_messages_are_to_be_tried_again(
        self, run: Run, ran: Milepost, execute: Execute
    ) -> None:
        execute(TestDeliveries.ROWS, "retrying")
        found = finding(run("doctor", "--json"), "lanes")
        assert found["verdict"] == "problem"
        assert "is served by nobody, with 20 to be tried again: start its program" in found["finding"]

    def test_a_worker_wants_it_and_does_not_take_it(self, run: Run, ran: Milepost, execute: Execute) -> None:
        # One that lives and does nothing: a real one would take the lane before the doctor looks.
        execute("""
            insert into {}.workers (id, "group", program, beat, lease, wants)
            select 'w', 'default', 'p', {}.clock(), '1 hour', array_agg(s.id) from {}.subscriptions s
        """)
        free = "update {}.lanes set since = {}.clock() - make_interval(secs => %s)"
        execute(free, 20)
        assert finding(run("doctor", "--json"), "lanes")["verdict"] == "ok"
        execute(free, 3600)
        outcome = run("doctor", "--json")
        found = finding(outcome, "lanes")
        assert (outcome.status, found["verdict"]) == (1, "problem")
        assert "has 2 of 2 lanes without an owner, for 60 min, though 1 live worker want" in found["finding"]

    def test_a_paused_one_needs_none(self, run: Run, ran: Milepost, execute: Execute) -> None:
        execute("update {}.subscriptions set status = 'paused'")
        assert finding(run("doctor", "--json"), "lanes")["verdict"] == "ok"


class TestStatus:
    def test_stalled(self, run: Run, make_mp: MakeMilepost) -> None:
        mp = make_mp()

        @mp.subscription("stalling", category="order", stall_after=2, retry=Retry(delay=60))
        async def handle(message: Message[Any]) -> None:
            raise ValueError("bad")

        with mp.sync as log, log.running():
            for number in range(4):
                log.append(f"order-{number}", NewMessage("t"))
            while not log.manage("stalling").info().stalled:
                sleep(0.02)
            outcome = run("doctor", "--json")
        found = finding(outcome, "status")
        assert (outcome.status, found["verdict"], found["subject"]) == (1, "problem", "default/stalling")
        assert "is stalled: the last" in found["finding"]
        assert "milepost parked default/stalling --state retrying --state parked --verbose" in found["finding"]

    def test_paused(self, run: Run, ran: Milepost) -> None:
        async def pause() -> None:
            async with ran:
                await ran.manage("invoices").pause()

        asyncio.run(pause())
        outcome = run("doctor", "--json")
        found = finding(outcome, "status")
        assert (outcome.status, found["verdict"]) == (0, "warning")
        assert "shop/invoices is paused: `milepost subscriptions resume shop/invoices`" in found["finding"]

    @pytest.mark.parametrize(
        ("at", "words"), [(None, "nothing runs"), (4711, "nothing beyond position 4,711 runs")]
    )
    def test_at_a_barrier(self, run: Run, ran: Milepost, execute: Execute, at: int | None, words: str) -> None:
        stands = (
            "update {}.subscriptions set barrier = 'it is being moved', "
            "barrier_until = {}.clock() + make_interval(secs => %s), barrier_at = %s"
        )
        execute(stands, 3600, at)
        outcome = run("doctor", "--json")
        found = finding(outcome, "status")
        assert (outcome.status, found["verdict"]) == (0, "warning")
        assert "shop/invoices is at a barrier: it is being moved" in found["finding"]
        assert words in found["finding"]
        assert finding(outcome, "lanes")["verdict"] == "ok"
        # It ends by itself.
        execute(stands, -1, at)
        assert finding(run("doctor", "--json"), "status")["verdict"] == "ok"

    def test_two_definitions(self, run: Run, make_mp: MakeMilepost) -> None:
        def program(category: str) -> Milepost:
            mp = make_mp()

            @mp.subscription("bills", category=category)
            async def handle(message: Message[Any]) -> None: ...

            return mp

        with program("order").sync as older, older.running():
            with program("invoice").sync as newer, newer.running():
                while not newer.manage("bills").info().outdated:
                    sleep(0.02)
                outcome = run("doctor", "--json")
            found = finding(outcome, "status")
            assert (outcome.status, found["verdict"], found["subject"]) == (0, "warning", "default/bills")
            assert "with another definition, and 1 older one waits: stop those" in found["finding"]
            while older.manage("bills").info().outdated:
                sleep(0.02)
            assert finding(run("doctor", "--json"), "status")["verdict"] == "ok"


class TestDeliveries:
    ROWS = (
        'insert into {}.deliveries (subscription, "position", lane, attempts, total, size, revision, since, '
        "state, key) select s.id, n, n %% s.lanes, 1, 1, 1, 1, {}.clock() - make_interval(hours => 100 - n), %s, "
        "'k' || n from {}.subscriptions s, generate_series(10, 29) n"
    )

    def test_parked_ones(self, run: Run, ran: Milepost, execute: Execute) -> None:
        execute(self.ROWS, "parked")
        outcome = run("doctor", "--json")
        found = finding(outcome, "parked")
        assert (outcome.status, found["verdict"], found["subject"]) == (0, "warning", "shop/invoices")
        assert found["finding"] == (
            "shop/invoices has 20 parked, the first at position 10 for 4 d: see `milepost parked shop/invoices`, "
            "then retry or skip"
        )

    def test_unrouted_ones(self, run: Run, ran: Milepost, execute: Execute) -> None:
        execute(self.ROWS, "unrouted")
        found = finding(run("doctor", "--json"), "unrouted")
        assert found["verdict"] == "warning"
        assert (
            "has 20 that no consumer takes, the first at position 10 for 4 d: connect a consumer"
            in found["finding"]
        )

    def test_many_subscriptions(self, run: Run, make_mp: MakeMilepost, execute: Execute) -> None:
        mp = make_mp()
        for number in range(23):

            @mp.subscription(f"s{number:02}", category="order", lanes=1)
            def handle(message: Message[Any]) -> None: ...

        with mp.sync as log:
            log.run_until_idle()
        execute(self.ROWS, "parked")
        lines = findings(run("doctor", "--json"), "parked")
        assert [line["subject"] for line in lines[:-1]] == [f"default/s{number:02}" for number in range(20)]
        assert lines[-1]["finding"] == "and 3 more like these"


class TestFilters:
    def checked(self, run: Run, make_mp: MakeMilepost, where: str, **options: Any) -> dict[str, Any]:
        """What is found of a filter on orders of 5 customers in the EU."""
        mp = make_mp()

        @mp.subscription("filtered", where=where, **{"category": "order", **options})
        def handle(message: Message[Any]) -> None: ...

        with mp.sync as log:
            for number in range(30):
                properties: Any = {"amount": number, "region": "EU"}
                log.append(f"order-{number % 5}", NewMessage("placed", properties=properties))
            log.append("other-1", NewMessage("placed", properties={"region": "US"}))
            log.append("order-1", NewMessage("placed"))
            log.run_until_idle()
        return finding(run("doctor", "--json"), "filters")

    def test_one_that_matches(self, run: Run, make_mp: MakeMilepost) -> None:
        found = self.checked(run, make_mp, 'amount == 1 && region == "EU"')
        assert (found["verdict"], found["finding"]) == ("ok", "each of 1 matches something new")

    def test_one_that_matches_nothing(self, run: Run, make_mp: MakeMilepost) -> None:
        found = self.checked(run, make_mp, 'region == "eu" || amount > 1000')
        assert (found["verdict"], found["subject"]) == ("warning", "default/filtered")
        assert "its filter matches none of the newest 31 messages that it could match" in found["finding"]
        assert (
            'region == "eu" is false (region is "EU") and amount > 1000 is false (amount is 29)'
            in found["finding"]
        )

    def test_one_that_cannot_be_evaluated(self, run: Run, make_mp: MakeMilepost) -> None:
        found = self.checked(run, make_mp, "region == EU")
        assert found["verdict"] == "warning"
        assert "its filter cannot be evaluated on any of the newest 31 messages" in found["finding"]
        assert 'did you mean "EU"' in found["finding"]

    @pytest.mark.shard("variants", fast=["options0-32", "options2-1", "options5-0"])
    @pytest.mark.parametrize(
        ("options", "count"),
        [
            ({"category": None}, 32),
            ({"category": ["order", "other"]}, 32),
            ({"category": "other"}, 1),
            ({"category": None, "stream": "order-1"}, 7),
            ({"category": "order", "stream": ["order-1", "other-1", "nowhere-1"]}, 7),
            ({"types": "plac.*"}, 0),
            ({"types": "placed"}, 31),
        ],
    )
    def test_what_it_could_match(
        self, run: Run, make_mp: MakeMilepost, options: dict[str, Any], count: int
    ) -> None:
        found = self.checked(run, make_mp, "customer == 1", **options)
        assert (found["verdict"] == "warning") is (count > 0)
        if count:
            assert f"the newest {count} messages that it could match" in found["finding"]

    def test_few_messages_say_nothing_of_a_filter(self, run: Run, make_mp: MakeMilepost) -> None:
        assert self.checked(run, make_mp, "amount > 1000", stream="order-1")["verdict"] == "ok"

    def test_a_definition_that_cannot_be_read(self, run: Run, ran: Milepost, execute: Execute) -> None:
        execute("""update {}.definitions set selects = '{{"where":"amount >","unheard of":1}}'""")
        assert finding(run("doctor", "--json"), "filters")["verdict"] == "ok"


class TestTables:
    @pytest.fixture
    def schema(self, unused_schema: str) -> str:
        """A new schema: where others have been, there are dead rows already."""
        return unused_schema

    def rows(self, execute: Execute, count: int) -> None:
        execute(
            'insert into {}.deliveries (subscription, "position", lane, attempts, total, size, revision, since, '
            "state, error) select 99, n, 0, 1, 1, 1, 1, now(), 'parked', repeat('x', 500) "
            "from generate_series(1, %s) n",
            count,
        )

    def found(self, run: Run, execute: Execute) -> dict[str, Any]:
        """The finding, once PostgreSQL's statistics know of what was done."""
        while (found := findings(run("doctor", "--json"), "tables"))[0]["verdict"] == "ok":
            execute("select pg_stat_force_next_flush()")
        [one] = [found for found in found if found["subject"] != "counts"]
        return one

    def test_dead_rows(self, run: Run, ran: Milepost, execute: Execute, schema: str) -> None:
        execute("alter table {}.deliveries set (autovacuum_enabled = off)")
        self.rows(execute, 12_000)
        execute("delete from {}.deliveries")
        found = self.found(run, execute)
        assert (found["verdict"], found["subject"]) == ("warning", "deliveries")
        assert "deliveries has 12,000 dead rows and 0 live ones" in found["finding"]
        assert f'run `vacuum "{schema}".deliveries`' in found["finding"]

    def test_cursors_that_are_not_removed(self, run: Run, ran: Milepost, execute: Execute) -> None:
        execute("alter table {}.cursors set (autovacuum_enabled = off)")
        execute(
            'insert into {}.cursors (subscription, lane, revision, "position") '
            "select 99, 0, n, 1 from generate_series(1, 11000) n"
        )
        found = self.found(run, execute)
        assert (found["verdict"], found["subject"]) == ("warning", "cursors")
        assert "rows for 2 lanes: old revisions are not removed" in found["finding"]

    def test_empty_space(self, run: Run, ran: Milepost, execute: Execute, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log_checks, "LARGE_TABLE_BYTES", 2**20)
        self.rows(execute, 5000)
        execute('delete from {}.deliveries where "position" < 5000')
        execute("vacuum {}.deliveries")
        found = self.found(run, execute)
        assert (found["verdict"], found["subject"]) == ("warning", "deliveries")
        assert "deliveries takes 3 MiB for 1 rows" in found["finding"]


class TestClock:
    def test_one_that_a_test_has_moved(self, run: Run, ran: Milepost, execute: Execute, schema: str) -> None:
        execute(
            "create or replace function {}.clock() returns timestamptz language sql volatile parallel safe "
            "as $$ select clock_timestamp() + interval '2 hours' $$"
        )
        outcome = run("doctor", "--json")
        found = finding(outcome, "schema_clock")
        assert (outcome.status, found["verdict"]) == (1, "problem")
        assert f"schema {schema!r} is 2:00:00 ahead of its server" in found["finding"]
        put_back = found["finding"].partition("Put it back: ")[2]
        execute(put_back.replace(f'"{schema}"', "{}"))
        assert finding(run("doctor", "--json"), "schema_clock")["verdict"] == "ok"


class TestAnotherDatabase:
    @pytest.fixture
    def other_url(self, second_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
        """A second database, which the environment names for progress."""
        monkeypatch.setenv("MILEPOST_PROGRESS", second_url)
        return second_url

    @pytest.fixture
    def shop(self, other_url: str, make_mp: MakeMilepost) -> Milepost:
        """A program that has parked a message, and keeps that there."""
        mp = make_mp(group="shop", progress=other_url)

        @mp.subscription("invoices", category="order", lanes=2, where="amount > 100")
        def invoice(message: Message[Any]) -> None:
            raise Park("odd")

        with mp.sync as log:
            for amount in [200, *range(30)]:
                log.append("order-1", NewMessage("placed", properties={"amount": amount}))
            log.run_until_idle()
        return mp

    def test_all_that_is_there_is_found(self, run: Run, shop: Milepost) -> None:
        outcome = run("doctor", "--json")
        found = finding(outcome, "progress")
        assert found["verdict"] == "ok"
        assert found["finding"].startswith("database test_")
        assert found["finding"].endswith("follows this log")
        assert "shop/invoices has 1 parked" in finding(outcome, "parked")["finding"]
        assert finding(outcome, "lanes")["subject"] == "shop/invoices"
        assert finding(outcome, "filters")["verdict"] == "ok"

    def test_without_its_address_nothing_of_it_is_known(
        self, run: Run, shop: Milepost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("MILEPOST_PROGRESS")
        outcome = run("doctor", "--json")
        assert finding(outcome, "progress")["finding"] == "is kept with the log"
        assert finding(outcome, "parked")["finding"] == "there are no subscriptions"

    def test_it_cannot_be_reached(self, run: Run, shop: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MILEPOST_PROGRESS", "postgresql://127.0.0.1:1/x")
        outcome = run("doctor", "--json")
        found = finding(outcome, "progress")
        assert (outcome.status, found["verdict"]) == (1, "problem")
        assert "its database: PostgreSQL: connection" in found["finding"]
        assert findings(outcome, "workers") == []
        assert verdicts(outcome)["log"] == "ok"

    def test_it_has_no_schema(self, run: Run, empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MILEPOST_PROGRESS", empty_url)
        run("schema", "migrate").done()
        outcome = run("doctor", "--json")
        found = finding(outcome, "progress")
        assert (outcome.status, found["verdict"]) == (1, "problem")
        assert "run `milepost schema migrate`, with its --url" in found["finding"]

    def test_it_follows_another_log(self, run: Run, shop: Milepost, execute: Execute) -> None:
        execute("update {}.identity set log = gen_random_uuid()")
        outcome = run("doctor", "--json")
        found = finding(outcome, "progress")
        assert (outcome.status, found["verdict"]) == (1, "problem")
        assert "keeps the progress of another log than this one" in found["finding"]

    def test_the_log_went_back(self, run: Run, shop: Milepost, execute: Execute) -> None:
        execute('delete from {}.messages where "position" > 5')
        execute("alter sequence {}.messages_position_seq restart with 6")
        outcome = run("doctor", "--json")
        found = finding(outcome, "progress")
        assert (outcome.status, found["verdict"]) == (1, "problem")
        assert "the log went back: progress followed it to position 31, and it is at" in found["finding"]

    def test_its_clock_was_moved(self, run: Run, shop: Milepost, other_url: str, schema: str) -> None:
        with psycopg.connect(other_url, autocommit=True) as connection:
            move = (
                "create or replace function {}.clock() returns timestamptz language sql volatile parallel safe "
                "as $$ select clock_timestamp() - interval '1 day' $$"
            )
            connection.execute(sql.SQL(move).format(sql.Identifier(schema)))
        assert "1 day, 0:00:00 behind its server" in finding(run("doctor", "--json"), "schema_clock")["finding"]


@pytest.mark.shard("large")
class TestCosts:
    """What the doctor asks is found by indexes, on a log of 100,000 messages with as many rows of each kind."""

    MESSAGES = (
        "insert into {}.messages (stream_id, version, category_hash, bucket, size, id, type, data, properties, "
        "metadata) select m.stream_id, n, m.category_hash, m.bucket, m.size, gen_random_uuid(), m.type, m.data, "
        "m.properties, m.metadata from {}.messages m, generate_series(2, 100000) n"
    )
    ROWS = (
        'insert into {}.deliveries (subscription, "position", lane, attempts, total, size, revision, since, '
        "state, key) select s.id, n + %s, n %% s.lanes, 1, 1, 1, 1, now(), %s, 'k' || n "
        "from {}.subscriptions s, generate_series(1, 100000) n"
    )

    def test_a_long_log_with_many_rows(
        self, ran: Milepost, execute: Execute, database_url: str, schema: str
    ) -> None:
        execute(self.MESSAGES)
        for number, state in enumerate(("parked", "waiting", "unrouted")):
            execute(self.ROWS, 100_000 * number, state)
        for table in ("messages", "deliveries", "counts"):
            execute(f"vacuum analyze {{}}.{table}")
        hash_ = category_hash("order")
        questions: list[tuple[str, dict[str, Any], int]] = [
            ("subscriptions", {"most": 100_000, "subscriptions": 1000}, 2000),
            ("newest", {}, 10),
            ("filters", {"most": 200}, 10),
            ("sample", {"everything": True, "hashes": [], "streams": []}, 3000),
            ("sample", {"everything": False, "hashes": [hash_], "streams": []}, 3000),
            ("sample", {"everything": False, "hashes": [hash_ + 1], "streams": []}, 20),
            ("sample", {"everything": False, "hashes": [], "streams": ["order-1", "order-2"]}, 3000),
            ("workers", {"most": 1000}, 10),
        ]
        with psycopg.connect(database_url, autocommit=True) as connection:
            for name, parameters, most in questions:
                statement = Statements(schema, "milepost.cli.checks").get(name)
                text: Any = f"explain (analyze, buffers, format json) {statement}"
                row = connection.execute(text, {"each": 500, "most": 500, **parameters}).fetchone()
                assert row is not None
                plan = row[0][0]["Plan"]
                assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= most, (name, parameters, plan)
