"""`milepost token`."""

import pytest

from cli.program import Run


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
