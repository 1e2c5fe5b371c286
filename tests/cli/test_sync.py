"""`milepost subscriptions sync`: what a program declares is created before its workers start."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.program import Run
from milepost import NewMessage
from milepost.sync import SyncMilepost
from support import MakeMilepost

BEGIN = """
from milepost import Message, Milepost

mp = Milepost(group="billing")
"""
HANDLER = """
@mp.subscription("invoices", category="order", {options})
async def handle(message: Message{more}) -> None: ...
"""


@pytest.fixture
def log(make_mp: MakeMilepost) -> Iterator[SyncMilepost]:
    """An open log on the test's schema."""
    with make_mp(group="billing").sync as log:
        yield log


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a program; gives its address."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def write(program: str) -> str:
        (tmp_path / "synced.py").write_text(BEGIN + program)
        monkeypatch.delitem(sys.modules, "synced", raising=False)
        return "synced:mp"

    return write


def test_it_creates_what_is_new_and_leaves_the_rest(
    run: Run, write: Callable[[str], str], log: SyncMilepost
) -> None:
    log.append("order-1", NewMessage("placed"))
    shop = write(HANDLER.format(options='start="now"', more=""))
    created = {"group": "billing", "name": "invoices", "created": True, "status": "running", "differs": None}
    assert run("subscriptions", "sync", shop, "--json").done().json == [created]
    assert log.manage("invoices").info().lag.positions == 0
    assert "billing/invoices  running  was there already" in run("subscriptions", "sync", shop).done().out
    later = write(HANDLER.format(options='where="number > 1"', more=""))
    differs = "differs until a worker starts: filter everything, here number > 1"
    assert differs in run("subscriptions", "sync", later).done().out


def test_what_is_declared_paused_waits(run: Run, write: Callable[[str], str], log: SyncMilepost) -> None:
    shop = write(HANDLER.format(options="paused=True", more=""))
    assert "billing/invoices  paused  created" in run("subscriptions", "sync", shop).done().out
    assert log.manage("invoices").info().status == "paused"
    run("subscriptions", "resume", "billing/invoices").done()
    assert "billing/invoices  running" in run("subscriptions", "sync", shop).done().out


def test_what_cannot_run_is_refused(run: Run, write: Callable[[str], str]) -> None:
    run("subscriptions", "sync", write("")).refused("has no subscriptions")
    run("subscriptions", "sync", write(HANDLER.format(options="", more=", path: str"))).refused("provides str")
    run("subscriptions", "sync", "nowhere:mp").refused("there is no module 'nowhere'")
