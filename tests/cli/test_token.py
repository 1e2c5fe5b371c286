"""`milepost token`."""

from datetime import UTC, datetime, timedelta

import pytest

from cli.program import Run
from roles import User


def test_make_list_revoke(run: Run) -> None:
    made = run("token", "make", "shop", "--role", "append", "--role", "read")
    assert made.status == 0
    secret = made.out.strip()
    assert secret.startswith("mp_")
    assert "not shown again" in made.err
    listed = run("token", "list").done().out
    assert "shop" in listed
    assert "append read" in listed
    assert secret not in listed
    assert run("token", "revoke", "shop").done().out == "shop is revoked\n"
    [only] = run("token", "list", "--json").done().json
    assert (only["name"], only["roles"], only["last_used"]) == ("shop", ["append", "read"], None)
    assert only["revoked"] is not None
    assert secret not in str(only)


def test_make_for_a_program(run: Run) -> None:
    made = run("token", "make", "shop", "--role", "read", "--json").done().json
    assert (made["name"], made["roles"]) == ("shop", ["read"])
    assert made["token"].startswith("mp_")


def test_expiry(run: Run) -> None:
    made = run("token", "make", "week", "--role", "read", "--expires", "1w", "--json").done().json
    ends = datetime.fromisoformat(made["expires"])
    assert timedelta(days=6) < ends - datetime.now(UTC) < timedelta(days=8)
    run("token", "make", "date", "--role", "read", "--expires", "2099-12-31")
    run("token", "make", "time", "--role", "read", "--expires", "2099-12-31T18:00:00Z")
    run("token", "make", "never", "--role", "read")
    found = {each["name"]: each for each in run("token", "list", "--json").done().json}
    assert all(each["in_force"] for each in found.values())
    assert datetime.fromisoformat(found["week"]["expires"]) == ends
    assert datetime.fromisoformat(found["date"]["expires"]) == datetime(2099, 12, 31).astimezone()
    assert found["time"]["expires"] == "2099-12-31T18:00:00Z"
    assert found["never"]["expires"] is None
    assert "2099-12-31 00:00" in run("token", "list").done().out


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ("soon", "12h, 30d or 8w"),
        ("30", "12h, 30d or 8w"),
        ("-1d", "12h, 30d or 8w"),
        ("0d", "later than now"),
        ("40000d", "within 100 years"),
        ("999999999w", "after all time"),
        ("2001-01-01", "later than now"),
    ],
)
def test_no_expiry(run: Run, when: str, words: str) -> None:
    run("token", "make", "shop", "--role", "read", "--expires", when).refused(words)
    assert run("token", "list", "--json").done().json == []


def test_scope(run: Run) -> None:
    words = ("--role", "read", "--group", "billing", "--group", "a b", "--category", "order")
    made = run("token", "make", "shop", *words, "--json").done().json
    assert (made["groups"], made["categories"]) == (["a b", "billing"], ["order"])
    run("token", "make", "all", "--role", "read")
    found = {each["name"]: each for each in run("token", "list", "--json").done().json}
    assert (found["shop"]["groups"], found["shop"]["categories"]) == (["a b", "billing"], ["order"])
    assert (found["all"]["groups"], found["all"]["categories"]) == (None, None)
    listed = run("token", "list").done().out.splitlines()
    assert listed[0].split()[:4] == ["name", "roles", "groups", "categories"]
    assert listed[1].split()[:4] == ["all", "read", "all", "all"]
    assert "a b, billing  order " in listed[2]
    run("token", "make", "x", "--role", "read", "--group", "a/b").refused("group: 'a/b'")
    run("token", "make", "x", "--role", "read", "--category", "order-1").refused("before the first dash")


def test_refusals(run: Run) -> None:
    run("token", "make", "shop", "--role", "read")
    run("token", "make", "shop", "--role", "read").refused("there is a token 'shop' already")
    run("token", "make", "shop").refused("--role")
    run("token", "make", "other", "--role", "fly").refused("fly")
    run("token", "make", "", "--role", "read").refused("it is empty")
    run("token", "revoke", "other").refused("there is no token 'other' in force", "milepost token list")


@pytest.mark.usefixtures("no_log")
def test_there_has_to_be_a_log(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("token", "list").refused("milepost schema migrate")
    monkeypatch.delenv("MILEPOST_URL")
    run("token", "list").refused("no database")


def test_only_an_operator_makes_one(run: Run, user: User) -> None:
    worker, operator = user("worker"), user("operator")
    run("token", "make", "own", "--role", "operate", "--url", worker).refused("permission denied for table tokens")
    run("token", "list", "--url", worker).refused("permission denied for table tokens")
    assert run("token", "make", "shop", "--role", "append", "--url", operator).out.startswith("mp_")
    run("token", "revoke", "shop", "--url", operator).done()
