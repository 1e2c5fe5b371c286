"""`milepost config` and `milepost url`: what is in force, and where from."""

import os
import subprocess
from pathlib import Path

import psycopg
import pytest

from cli.program import COMMAND, Outcome, Run
from milepost.cli.commands.config import shown_address
from milepost.options import OPTIONS


def test_every_option_says_where_it_comes_from(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILEPOST_POOL_SIZE", "3")
    found = {option["name"]: option for option in run("config", "--json", "--schema", "shop").done().json}
    assert set(found) == set(OPTIONS)
    assert (found["schema"]["value"], found["schema"]["source"]) == ("shop", "command line")
    assert (found["pool_size"]["value"], found["pool_size"]["source"]) == (3, "MILEPOST_POOL_SIZE")
    assert (found["migrate"]["value"], found["migrate"]["source"]) == ("auto", "default")
    assert found["migrate"]["variable"] == "MILEPOST_MIGRATE"
    printed = run("config").done().out
    for name, option in OPTIONS.items():
        assert name in printed
        assert option.help in printed


def test_it_needs_no_database(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILEPOST_URL")
    assert "MILEPOST_URL" in run("config").done().out
    assert run("config", "--json").json[0]["value"] is None


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://bob:hunter2@host/shop",
        "postgresql://bob:hunter2@host:5432,other/shop?sslmode=require",
        "postgresql://bob:hunter2%40x@host/shop",
        "postgresql://bob:x@hunter2@host/shop",
        "postgresql://bob:#hunter2@host/shop",
        "postgresql://host/shop?user=bob&password=hunter2",
        "postgresql://host/shop?sslpassword=hunter2",
        "host=host user=bob password=hunter2",
        "host=host password='hunter2 with spaces'",
        "postgresql://bob:hunter2@[::1/shop",
        "mysql://bob:hunter2@host/shop",
    ],
)
def test_a_password_is_not_shown(run: Run, url: str) -> None:
    for words in (["config"], ["config", "--json"]):
        assert "hunter2" not in run(*words, "--url", url).done().out


def test_the_password_of_another_database_is_not_shown_either(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILEPOST_PROGRESS", "postgresql://bob:hunter2@host/app")
    found = {option["name"]: option for option in run("config", "--json").done().json}
    assert found["progress"]["source"] == "MILEPOST_PROGRESS"
    assert "host=host" in found["progress"]["value"]
    assert "hunter2" not in run("config").done().out + found["progress"]["value"]
    assert found["leases"]["variable"] is None


def test_an_address_without_password_is_shown_as_it_is() -> None:
    for url in ("postgresql://bob@host/shop?sslmode=require", "host=/tmp dbname=x", "embedded", "embedded:here"):
        assert shown_address(url) == url
    assert "host" in shown_address("postgresql://bob:hunter2@host/shop")


def test_the_address_of_a_server(run: Run, database_url: str) -> None:
    assert run("url").done().out == f"{database_url}\n"


@pytest.mark.shard("processes")
def test_the_embedded_server_is_left_running_until_it_is_stopped(environment: None, folder: Path) -> None:
    def milepost(*words: str) -> Outcome:
        environment = {**os.environ, "MILEPOST_URL": "embedded"}
        done = subprocess.run(
            [*COMMAND, *words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    started = milepost("url")
    assert started.status == 0
    assert started.err.count("\n") == 1
    assert "milepost url --stop" in started.err
    address = started.out.strip()
    with psycopg.connect(address) as connection:
        connection.execute("select 1")
    milepost("append", "a-1", "t", "1").done()
    with psycopg.connect(address) as connection:
        connection.execute("select 1")
    stopped = milepost("url", "--stop")
    assert (stopped.status, stopped.out) == (0, "")
    assert "is stopped" in stopped.err
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(address)
    again = milepost("url", "--stop")
    assert (again.status, again.err.count("\n")) == (0, 1)
    assert "was not running" in again.err
    assert len(milepost("read", "--json").done().lines) == 1


def test_an_embedded_server_that_does_not_start_says_why(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "xx_YY.nothing")
    run("read", "--url", f"embedded:{folder / 'data'}").refused("does not start: initdb: error: invalid locale")
