"""`milepost parked`: the list, retry, skip."""

import os
import pty
import re
import signal
import termios
from time import sleep
from typing import Any

import psycopg
import pytest
from psycopg import sql

from cli.program import Program, Run, Start
from milepost import Message, Milepost, NewMessage, Park
from support import MakeMilepost


@pytest.fixture
def shop(make_mp: MakeMilepost) -> Milepost:
    """A program with two parked messages, behind one of which another waits."""
    mp = make_mp(group="shop")

    @mp.subscription("invoices", category="order", lanes=2)
    def invoice(message: Message[Any]) -> None:
        if message.type == "odd":
            raise Park("odd\x1b[31m number")
        if message.type == "bad":
            raise ValueError("bad number")

    with mp.sync as log:
        for stream, name in (("order-1", "odd"), ("order-1", "even"), ("order-2", "bad"), ("order-3", "even")):
            log.append(stream, NewMessage(name, {"n": 1}))
        log.run_until_idle(errors="park")
    return mp


def states(database_url: str, schema: str) -> dict[int, str]:
    with psycopg.connect(database_url) as connection:
        rows = sql.SQL('select "position", state from {}.deliveries').format(sql.Identifier(schema))
        return dict(connection.execute(rows).fetchall())


def park_many(database_url: str, schema: str, count: int) -> None:
    """Rows as if so many messages had been parked."""
    with psycopg.connect(database_url) as connection:
        connection.execute(
            sql.SQL(
                'insert into {}.deliveries (subscription, "position", lane, attempts, total, size, revision, '
                "since, state, key) select id, n, 0, 1, 1, 1, 1, now(), 'parked', 'k' || n "
                "from {}.subscriptions, generate_series(100, 99 + %s) n"
            ).format(*[sql.Identifier(schema)] * 2),
            [count],
        )


class TestTheList:
    def test_a_table(self, run: Run, shop: Milepost) -> None:
        heading, first, second = run("parked", "shop/invoices").done().out.splitlines()
        assert heading.split() == [
            "position", "stream", "type", "state", "since", "attempts", "next", "waiting", "reason"
        ]  # fmt: skip
        assert first.split()[:4] == ["1", "order-1", "odd", "parked"]
        # What a terminal would obey is spelled out.
        assert first.split()[6:] == ["1", "1", r"odd\x1b[31m", "number"]
        assert second.split()[:4] == ["3", "order-2", "bad", "parked"]
        assert second.endswith("ValueError: bad number")

    def test_other_states(self, run: Run, shop: Milepost) -> None:
        lines = run("parked", "shop/invoices", "--state", "waiting").done().out.splitlines()
        assert len(lines) == 2
        assert lines[1].split()[:4] == ["2", "order-1", "even", "waiting"]
        assert "behind 1" in lines[1]
        both = run("parked", "--state", "waiting", "--state", "parked", "shop/invoices").done().out
        assert len(both.splitlines()) == 4
        assert len(run("parked", "shop/invoices", "--key", "order-2").done().out.splitlines()) == 2
        assert len(run("parked", "shop/invoices", "--reason", "BAD").done().out.splitlines()) == 2
        assert len(run("parked", "shop/invoices", "--after", "1").done().out.splitlines()) == 2
        run("parked", "shop/invoices", "--state", "parkd").refused("parkd", "milepost parked list --help")

    def test_the_whole_error(self, run: Run, shop: Milepost) -> None:
        out = run("parked", "shop/invoices", "--verbose").done().out
        assert "reason    ValueError: bad number" in out
        assert "        raise ValueError" in out
        assert 'data      {"n": 1}' in out
        assert "\x1b" not in out

    def test_for_programs(self, run: Run, shop: Milepost) -> None:
        first, second = run("parked", "shop/invoices", "--json").done().lines
        assert (first["position"], first["state"], first["key"]) == (1, "parked", "order-1")
        assert (first["attempts"], first["total"], first["due"], first["waiting_behind"]) == (1, 1, None, 1)
        assert (first["message"]["stream"], first["message"]["data"]) == ("order-1", {"n": 1})
        assert "raise ValueError" in second["error"]

    def test_a_message_that_is_gone(self, run: Run, shop: Milepost, database_url: str, schema: str) -> None:
        park_many(database_url, schema, 1)
        assert run("parked", "shop/invoices", "--json").done().lines[-1]["message"] is None
        assert "no longer in the log" in run("parked", "shop/invoices").done().out

    def test_nothing_is_parked(self, run: Run, shop: Milepost) -> None:
        assert len(run("parked", "shop/invoices", "--state", "skipped").done().out.splitlines()) == 1
        assert run("parked", "shop/invoices", "--state", "skipped", "--json").done().out == ""

    def test_many(self, run: Run, shop: Milepost, database_url: str, schema: str) -> None:
        park_many(database_url, schema, 500)
        outcome = run("parked", "shop/invoices")
        assert len(outcome.out.splitlines()) == 101
        assert outcome.err == "milepost: these are 100 of 502; --limit shows more\n"
        assert len(run("parked", "shop/invoices", "--limit", "3").done().out.splitlines()) == 4
        assert len(run("parked", "shop/invoices", "--json").done().lines) == 502
        whole = run("parked", "shop/invoices", "--limit", "1000").done().out
        assert sum(line.split()[0].isdigit() for line in whole.splitlines()) == 502

    def test_who_is_meant(self, run: Run, shop: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
        run("parked", "invoices").refused("did you mean 'shop/invoices'?")
        run("parked").refused("SUBSCRIPTION", "milepost parked list --help")
        monkeypatch.setenv("MILEPOST_GROUP", "shop")
        assert len(run("parked", "invoices").done().out.splitlines()) == 3
        assert "retry" in run("parked", "--help").done().out


class TestDecisions:
    def test_positions(self, run: Run, shop: Milepost, database_url: str, schema: str) -> None:
        outcome = run("parked", "retry", "shop/invoices", "1", "3").done()
        assert outcome.out == (
            "retried 2 messages; nobody runs shop/invoices now: they are looked at when its program starts\n"
        )
        assert states(database_url, schema) == {1: "retrying", 2: "waiting", 3: "retrying"}
        assert run("parked", "skip", "shop/invoices", "2").done().out.startswith("skipped 1 message;")
        assert states(database_url, schema)[2] == "skipped"

    def test_positions_that_are_refused(self, run: Run, shop: Milepost) -> None:
        outcome = run("parked", "retry", "shop/invoices", "1", "2", "99")
        assert outcome.status == 1
        assert outcome.out.startswith("retried 1 message;")
        first, second = outcome.err.splitlines()
        assert first.startswith("milepost: position 2: it waits behind another of its key")
        assert second.startswith("milepost: position 99: it has no delivery")
        outcome = run("parked", "skip", "shop/invoices", *map(str, range(100, 150)), "--json")
        assert (outcome.status, outcome.json["moved"], len(outcome.json["refused"])) == (1, 0, 50)
        assert outcome.err.splitlines()[-1] == "milepost: and 30 more were refused"

    def test_all(self, run: Run, shop: Milepost, database_url: str, schema: str) -> None:
        assert run("parked", "skip", "shop/invoices", "--all", "--yes", "--json").done().json == {
            "moved": 2,
            "refused": {},
        }
        assert states(database_url, schema) == {1: "skipped", 2: "waiting", 3: "skipped"}
        assert run("parked", "retry", "shop/invoices", "--all").done().out == "retried 0 messages\n"

    def test_up_to_and_at_most(self, run: Run, shop: Milepost, database_url: str, schema: str) -> None:
        park_many(database_url, schema, 50)
        run("parked", "retry", "shop/invoices", "--up-to", "119", "--limit", "10", "--yes").done()
        found = states(database_url, schema)
        assert sorted(position for position in found if found[position] == "retrying") == [1, 3, *range(100, 108)]
        run("parked", "retry", "shop/invoices", "--up-to", "119", "--yes").done()
        assert sum(state == "retrying" for state in states(database_url, schema).values()) == 22
        run("parked", "skip", "shop/invoices", "--all", "--state", "retrying", "--reason", "odd", "-y").done()
        assert states(database_url, schema)[1] == "skipped"

    def test_those_of_a_key(self, run: Run, shop: Milepost, database_url: str, schema: str) -> None:
        run("parked", "retry", "shop/invoices", "--all", "--key", "order-2").refused("retry 1 message of shop")
        words = ("shop/invoices", "--all", "--key", "order-2", "--yes", "--json")
        assert run("parked", "retry", *words).done().json["moved"] == 1
        assert states(database_url, schema) == {1: "parked", 2: "waiting", 3: "retrying"}
        assert run("parked", "skip", *words).done().json["moved"] == 0
        assert run("parked", "skip", *words, "--state", "retrying").done().json["moved"] == 1
        assert states(database_url, schema) == {1: "parked", 2: "waiting", 3: "skipped"}

    def test_a_paused_subscription(self, run: Run, shop: Milepost, database_url: str, schema: str) -> None:
        with psycopg.connect(database_url) as connection:
            pause = sql.SQL("update {}.subscriptions set status = 'paused'").format(sql.Identifier(schema))
            connection.execute(pause)
        assert "is paused" in run("parked", "retry", "shop/invoices", "1").done().out

    @pytest.mark.parametrize(
        "words", [(), ("--limit", "3"), ("1", "--all"), ("--all", "--up-to", "3"), ("1", "--up-to", "3")]
    )
    def test_what_cannot_be_meant(self, run: Run, shop: Milepost, words: tuple[str, ...]) -> None:
        for verb in ("retry", "skip"):
            run("parked", verb, "shop/invoices", *words).refused("which ones?")

    def test_words_that_exclude_each_other(self, run: Run, shop: Milepost) -> None:
        run("parked", "retry", "shop/invoices", "1", "--reason", "odd").refused("positions say which ones")
        run("parked", "skip", "shop/invoices", "1", "--key", "order-1").refused("positions say which ones")
        run("parked", "retry", "shop/invoices", "-1").refused("--help")
        run("parked", "retry", "shop/invoices", "--all", "--yes", "--state", "waiting").refused(
            "retry is for parked, retrying"
        )


class TestTheQuestion:
    """On a terminal there is one before many; elsewhere nobody could answer it."""

    def test_nobody_to_ask(self, run: Run, shop: Milepost, database_url: str, schema: str) -> None:
        run("parked", "retry", "shop/invoices", "--all").refused("retry 2 messages of shop/invoices", "--yes")
        run("parked", "skip", "shop/invoices", "--up-to", "1").refused("1 message of shop/invoices for good")
        assert states(database_url, schema) == {1: "parked", 2: "waiting", 3: "parked"}

    @pytest.mark.parametrize("answer", [pytest.param("y", marks=pytest.mark.shard("processes")), "n"])
    def test_a_person(self, start: Start, shop: Milepost, database_url: str, schema: str, answer: str) -> None:
        keyboard, terminal = pty.openpty()
        program = start("parked", "skip", "shop/invoices", "--all", stdin=terminal)
        os.write(keyboard, f"{answer}\n".encode())
        outcome = program.end()
        assert "skip 2 messages of shop/invoices for good? [y/N]" in outcome.err
        assert outcome.status == (0 if answer == "y" else 2)
        assert states(database_url, schema)[1] == ("skipped" if answer == "y" else "parked")


class TestCtrlC:
    """It takes effect after the batch that is under way; what was done is said, and the rest can follow."""

    COUNT = 5000

    def interrupted(self, start: Start, database_url: str, schema: str, number: int) -> tuple[Program, int]:
        """A program that is held up in its third batch when the signal comes, and that it has moved by then."""
        park_many(database_url, schema, self.COUNT)
        lock = sql.SQL('select from {}.deliveries where "position" = 2500 for update').format(
            sql.Identifier(schema)
        )
        waits = (
            "select count(*) from pg_stat_activity "
            "where wait_event_type = 'Lock' and datname = current_database() and position(%s in query) > 0"
        )
        with psycopg.connect(database_url) as connection, psycopg.connect(database_url, autocommit=True) as looks:
            connection.execute(lock)
            program = start("parked", "retry", "shop/invoices", "--all", "--yes")
            while looks.execute(waits, [schema]).fetchone() == (0,):
                assert program.process.poll() is None
                sleep(0.01)
            program.process.send_signal(number)
            if number == signal.SIGINT:
                connection.commit()
                program.process.wait(60)
            else:
                program.process.wait(60)
                connection.commit()
        moved = sum(state == "retrying" for state in states(database_url, schema).values())
        return program, moved

    def test_what_it_says_is_not_behind_the_bar(
        self, start: Start, shop: Milepost, database_url: str, schema: str
    ) -> None:
        park_many(database_url, schema, self.COUNT)
        terminal, inner = pty.openpty()
        termios.tcsetwinsize(inner, (24, 200))
        lock = sql.SQL('select from {}.deliveries where "position" = 2500 for update').format(
            sql.Identifier(schema)
        )
        with psycopg.connect(database_url) as connection:
            connection.execute(lock)
            program = start("parked", "retry", "shop/invoices", "--all", "--yes", stderr=inner)
            os.close(inner)
            shown = os.read(terminal, 65536)
            while b"2,000 of 5,002" not in shown:
                shown += os.read(terminal, 65536)
            program.process.send_signal(signal.SIGINT)
        while b"goes on from here" not in shown:
            shown += os.read(terminal, 65536)
        program.process.wait(60)
        os.close(terminal)
        erase = b"\x1b[2K"
        [said] = [part for part in shown.split(erase) if b"milepost: " in part]
        # The signal is noticed in the third batch, or a little later on a slow machine; but before the end.
        assert re.match(rb"milepost: retried [34],000 of 5,002, the others are as they were", said.strip())

    @pytest.mark.parametrize(
        "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.shard("processes"))]
    )
    def test_it_says_how_far_it_came(
        self, run: Run, start: Start, shop: Milepost, database_url: str, schema: str, number: int
    ) -> None:
        program, moved = self.interrupted(start, database_url, schema, number)
        outcome = program.end()
        assert outcome.status == 128 + number
        # The third batch ends; on a slow machine another may begin before the signal is noticed.
        assert moved in ((3000, 4000) if number == signal.SIGINT else (2000,))
        unsure = "" if number == signal.SIGINT else ", or 1,000 more"
        assert outcome.err.startswith(f"milepost: retried {moved:,} of 5,002{unsure}, the others are as they were")
        rest = run("parked", "retry", "shop/invoices", "--all", "--yes", "--json").done().json
        assert rest["moved"] == self.COUNT + 2 - moved
