"""A project of a user: a program, its tests, and nothing else."""

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

SHOP = """
from dataclasses import dataclass
from milepost import Milepost

mp = Milepost()

@mp.message(properties=["amount", "region"])
@dataclass
class OrderPlaced:
    order: int
    amount: int
    region: str

@mp.subscription("invoices", category="order", where='amount >= 100 && region == "EU"')
async def invoice(event: OrderPlaced) -> None:
    print("invoice for order", event.order)
"""
ASYNC_TEST = """
import shop
from shop import OrderPlaced

async def test_invoice(milepost_db):
    mp = milepost_db.use(shop.mp)
    await mp.append("order-1", OrderPlaced(1, 500, "EU"))
    report = await mp.run_until_idle()
    assert report["invoices"].handled == 1
    await milepost_db.advance(60)
    assert [message.data async for message in mp.read("order-1")] == [OrderPlaced(1, 500, "EU")]
    assert (await mp.manage("invoices").info()).lag.positions == 0
"""
SYNC_TEST = """
import shop
from shop import OrderPlaced

def test_invoice(milepost_db):
    mp = milepost_db.use(shop.mp)
    mp.sync.append("order-1", OrderPlaced(1, 500, "EU"))
    assert mp.sync.run_until_idle()["invoices"].handled == 1
    milepost_db.sync.advance(60)
    assert [message.data for message in mp.sync.read("order-1")] == [OrderPlaced(1, 500, "EU")]
    assert mp.sync.manage("invoices").info().lag.positions == 0
"""


@dataclass(frozen=True)
class Ended:
    """How pytest ended."""

    status: int
    out: str

    def passed(self, count: int) -> "Ended":
        """Asserts that so many tests passed, and that nothing was complained of."""
        assert self.status == 0, self.out
        assert re.search(rf"= {count} passed in ", self.out), self.out
        return self


class Project:
    """A folder with `shop.py` and tests."""

    def __init__(self, folder: Path, temporary: Path) -> None:
        self.folder = folder
        self.temporary = temporary
        """Where the project's processes have their temporary files."""
        self.python = sys.executable
        self.write("shop.py", SHOP)

    def write(self, name: str, text: str) -> None:
        """A file of the project."""
        (self.folder / name).write_text(dedent(text))

    def pytest(self, *words: str, **environment: str) -> Ended:
        """Runs the tests to their end."""
        with self.started(*words, **environment) as process:
            out, _ = process.communicate(timeout=100)
            return Ended(process.returncode, out)

    def started(self, *words: str, **environment: str) -> "subprocess.Popen[str]":
        """Starts the tests."""
        foreign = ("MILEPOST_", "PYTEST_", "COV_", "PYTHON")
        own = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        return subprocess.Popen(
            [self.python, "-m", "pytest", "-p", "no:cacheprovider", *words],
            cwd=self.folder,
            env=own | {"TMPDIR": str(self.temporary), "PYTHONDONTWRITEBYTECODE": "1"} | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def servers(self) -> list[Path]:
        """The folders of servers that run, or have run and are not removed."""
        return list(self.temporary.glob("milepost-*"))

    def until_no_server(self) -> None:
        """Waits until nothing is left of any server."""
        over = time.monotonic() + 30
        while self.servers():
            assert time.monotonic() < over, self.servers()
            time.sleep(0.05)
