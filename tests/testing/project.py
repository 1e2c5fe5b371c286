"""A project of a user: a program, its tests, and nothing else."""

import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

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


FOREIGN = ("MILEPOST_", "PYTEST_", "COV_", "PYTHON")
"""How the names of variables begin that are for these tests and not for those of a project."""


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

    def __init__(self, pytester: pytest.Pytester, temporary: Path) -> None:
        self.pytester = pytester
        self.folder = pytester.path
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

    def pytest_here(self, *words: str, **environment: str) -> Ended:
        """Runs the tests to their end in this process, which has imported everything already."""
        with pytest.MonkeyPatch.context() as patch:
            for name in list(os.environ):
                if name.startswith(FOREIGN):
                    patch.delenv(name)
            for name, value in {"TMPDIR": str(self.temporary), **environment}.items():
                patch.setenv(name, value)
            patch.setattr(tempfile, "tempdir", str(self.temporary))
            patch.setattr(sys, "dont_write_bytecode", True)
            for file in self.folder.glob("*.py"):
                patch.delitem(sys.modules, file.stem, raising=False)
            result = self.pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist", *words)
        return Ended(int(result.ret), "\n".join([*result.outlines, *result.errlines]))

    def started(self, *words: str, **environment: str) -> "subprocess.Popen[str]":
        """Starts the tests."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
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
