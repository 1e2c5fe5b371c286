"""`milepost run` on a program in a file, as a process of its own where it begins to work."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cli.program import Outcome, Program, Run, Start
from milepost import Milepost, NewMessage
from milepost.cli.run import supervisor
from milepost.cli.run.supervisor import ProcessSupervisor
from support import qualified

SHOP = """
import asyncio
import os
from typing import Any
from milepost import Message, Milepost, Park

mp = Milepost(concurrency=5)
empty = Milepost()
other = "text"

@mp.subscription("invoices", category="order", lanes=4, lease=float(os.environ.get("LEASE", "60")))
async def invoice(message: Message[Any]) -> None:
    with open("handled", "a") as file:
        file.write(f"{os.getpid()} {message.position}\\n")
    if message.type == "odd":
        raise Park("red \\x1b[31m bell \\x07")
    if message.type == "endless":
        await asyncio.Event().wait()
    if message.type == "slow":
        while not os.path.exists("go"):
            await asyncio.sleep(0.01)
        with open("ended", "a") as file:
            file.write(f"{message.position}\\n")

@mp.subscription("mails", category="mail", concurrency=2)
async def mail(message: Message[Any]) -> None: ...
"""
BROKEN = "import nowhere\n"
UNFINISHED = """
from milepost import Milepost
mp = Milepost()
mp.subscription("invoices")
"""
LINES = ["invoices: lanes 4, concurrency 5", "mails: lanes 16, concurrency 2"]


class Shop:
    """The folder of the program, and what its handlers left there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in (("shop", SHOP), ("broken", BROKEN), ("unfinished", UNFINISHED)):
            (folder / f"{name}.py").write_text(text)

    def handled(self) -> list[tuple[int, int]]:
        """The process and the position of each call."""
        path = self.folder / "handled"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(process), int(position)) for process, position in map(str.split, lines)]

    @property
    def processes(self) -> set[int]:
        """All that have handled something."""
        return {process for process, _ in self.handled()}

    def alive(self) -> set[int]:
        """Those of them that still run."""
        return {process for process in self.processes if _is_alive(process)}


def _is_alive(process: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(process, 0)
        return True
    return False


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    for process in shop.alive():
        os.kill(process, signal.SIGKILL)


async def until_handled(mp: Milepost, shop: Shop, processes: int) -> None:
    """Appends until so many processes have handled something, and all of it is handled."""
    appended = await mp.head()
    async with asyncio.timeout(100):
        while len(shop.processes) < processes:
            for number in range(20):
                await mp.append(f"order-{number}", NewMessage("placed"))
            appended += 20
            while len({position for _, position in shop.handled()}) < appended:
                await asyncio.sleep(0.05)


async def until_workers(mp: Milepost, count: int) -> None:
    """Waits until so many workers give signs of life."""
    statement = qualified("select count(*) from {}.workers", mp)
    async with asyncio.timeout(40):
        while list(await mp.log.database.execute(statement, {})) != [(count,)]:
            await asyncio.sleep(0.05)


async def end(program: Program, number: int) -> Outcome:
    return await asyncio.to_thread(program.end, number)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.shard("processes"))]
)
async def test_a_program_runs_until_a_signal(mp: Milepost, start: Start, shop: Shop, number: int) -> None:
    program = start("run", "shop:mp", cwd=shop.folder)
    await until_handled(mp, shop, 1)
    assert shop.processes == {program.process.pid}
    outcome = (await end(program, number)).done()
    assert outcome.out.splitlines() == LINES
    owned = await mp.log.database.execute(qualified("select count(owner) from {}.lanes", mp), {})
    assert list(owned) == [(0,)]


@pytest.mark.shard("processes")
async def test_what_a_terminal_would_obey_is_spelled_out(mp: Milepost, start: Start, shop: Shop) -> None:
    program = start("run", "shop:mp", cwd=shop.folder)
    await mp.append("order-odd", NewMessage("odd"))
    await until_handled(mp, shop, 1)
    outcome = await end(program, signal.SIGTERM)
    assert "parked at attempt 1: red \\x1b[31m bell \\x07\n" in outcome.err


@pytest.mark.timeout(200)
async def test_a_killed_process_comes_back(
    mp: Milepost, start: Start, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It cannot give its lanes back.
    monkeypatch.setenv("LEASE", "1")
    program = start("run", "shop:mp", "--processes", "2", "--grace", "5", cwd=shop.folder)
    await until_handled(mp, shop, 2)
    assert program.process.pid not in shop.processes
    os.kill(min(shop.processes), signal.SIGKILL)
    await until_handled(mp, shop, 3)
    outcome = await end(program, signal.SIGTERM)
    assert outcome.status == 0, outcome
    # The first process says them, and if it was the one that was killed, the next one does.
    assert outcome.out.splitlines() in (LINES, LINES * 2)
    assert "milepost: a process ended by SIGKILL: the next one starts in 1 s\n" in outcome.err
    assert not shop.alive()


@pytest.mark.shard("processes")
async def test_a_second_signal_kills(mp: Milepost, start: Start, shop: Shop) -> None:
    program = start("run", "shop:mp", "--processes", "2", "--grace", "600", cwd=shop.folder)
    await mp.append("order-1", NewMessage("endless"))
    await until_workers(mp, 2)
    async with asyncio.timeout(40):
        while not shop.handled():
            await asyncio.sleep(0.05)
    program.process.send_signal(signal.SIGTERM)
    await until_workers(mp, 1)
    assert (await end(program, signal.SIGTERM)).status == 1
    assert not shop.alive()


@pytest.mark.shard("processes")
@pytest.mark.parametrize("options", [[], ["--health", "127.0.0.1:0"]])
async def test_processes_end_in_order_when_the_first_one_is_killed(
    mp: Milepost, start: Start, shop: Shop, options: list[str]
) -> None:
    program = start("run", "shop:mp", "--processes", "2", *options, cwd=shop.folder)
    await until_handled(mp, shop, 2)
    assert len(shop.alive()) == 2
    outcome = await end(program, signal.SIGKILL)
    assert outcome.status == -signal.SIGKILL
    async with asyncio.timeout(40):
        while shop.alive():
            await asyncio.sleep(0.05)
    assert outcome.err.count("milepost: the process that started this one is gone: it ends\n") == 2
    owned = await mp.log.database.execute(qualified("select count(owner) from {}.lanes", mp), {})
    assert list(owned) == [(0,)]


@pytest.mark.shard("processes")
@pytest.mark.parametrize("killed", [False, True])
async def test_processes_that_are_told_twice_to_end_finish_what_runs(
    mp: Milepost, start: Start, shop: Shop, *, killed: bool
) -> None:
    """By a supervisor that tells all of them; or that tells the first one and kills it afterwards."""
    program = start("run", "shop:mp", "--processes", "2", cwd=shop.folder)
    await until_handled(mp, shop, 2)
    # In both processes, or in one so that the other has nothing to finish.
    count = 1 if killed else 4
    slow = {(await mp.append(f"order-{number}", NewMessage("slow"))).position for number in range(count)}
    async with asyncio.timeout(40):
        while not slow <= {position for _, position in shop.handled()}:
            await asyncio.sleep(0.05)
    children = shop.alive()
    program.process.send_signal(signal.SIGTERM)
    if not killed:
        for process in children:
            os.kill(process, signal.SIGTERM)
    else:
        # It has passed the signal on to both, and one has not ended.
        await until_workers(mp, 1)
        program.process.kill()
    (shop.folder / "go").touch()
    async with asyncio.timeout(40):
        while shop.alive():
            await asyncio.sleep(0.05)
    assert len((shop.folder / "ended").read_text().splitlines()) == count
    assert (await asyncio.to_thread(program.end)).status == (-signal.SIGKILL if killed else 0)


async def test_pauses_grow(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_SECONDS", 0.001)
    fails = [sys.executable, "-S", "-c", "raise SystemExit(1)"]
    said = ""
    work = asyncio.create_task(ProcessSupervisor([fails]).run())
    while said.count("\n") < 4:
        await asyncio.sleep(0)
        said += capfd.readouterr().err
    os.kill(os.getpid(), signal.SIGTERM)
    assert await work
    begin = "milepost: a process ended with status 1: the next one starts in"
    assert said.splitlines()[:4] == [f"{begin} {pause} s" for pause in ("0.001", "0.002", "0.004", "0.008")]


@pytest.mark.shard("processes")
async def test_each_of_several_processes_is_started_again(
    start: Start, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILEPOST_URL", "postgresql://127.0.0.1:1/x")
    program = start("run", "shop:mp", "--processes", "2", cwd=shop.folder)
    begin = "milepost: a process ended with status 1: the next one starts in"
    said: list[str] = []
    async with asyncio.timeout(100):
        while said.count(f"{begin} 1 s\n") < 2 or said.count(f"{begin} 2 s\n") < 2:
            said.append(await asyncio.to_thread(program.complaint))
    outcome = await end(program, signal.SIGTERM)
    assert (outcome.status, outcome.out) == (0, "")


@pytest.mark.parametrize("processes", ["1", pytest.param("2", marks=pytest.mark.shard("processes"))])
async def test_its_subscriptions_are_said_when_it_is_connected(
    mp: Milepost, start: Start, shop: Shop, processes: str
) -> None:
    program = start("run", "shop:mp", "--processes", processes, cwd=shop.folder)
    assert [await asyncio.to_thread(program.line) for _ in LINES] == [f"{line}\n" for line in LINES]
    await until_workers(mp, int(processes))
    assert (await end(program, signal.SIGTERM)).out == ""


@pytest.mark.shard("processes")
async def test_what_a_person_does_to_a_subscription_is_said(mp: Milepost, start: Start, shop: Shop) -> None:
    program = start("run", "shop:mp", cwd=shop.folder)
    await until_handled(mp, shop, 1)
    invoices = mp.manage("invoices")
    for act, status in ((invoices.pause, "paused"), (invoices.resume, "running")) * 2:
        await act()
        async with asyncio.timeout(40):
            assert await asyncio.to_thread(program.complaint) == f"milepost: invoices: it is {status}\n"
    await end(program, signal.SIGTERM)


@pytest.mark.shard("processes")
async def test_quiet_nothing_is_said(mp: Milepost, start: Start, shop: Shop) -> None:
    program = start("run", "shop:mp", "--processes", "2", "--quiet", cwd=shop.folder)
    await until_workers(mp, 2)
    (await end(program, signal.SIGTERM)).done()


@pytest.fixture
def imported(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The program can be imported in this process, and is forgotten afterwards."""
    monkeypatch.chdir(shop.folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("shop", "broken", "unfinished"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("imported")
def test_an_error_that_ends_the_program(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILEPOST_URL", "postgresql://127.0.0.1:1/x")
    outcome = run("run", "shop:mp")
    assert (outcome.status, outcome.out) == (1, "")
    assert "is the server running" in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["shop"], "such as shop:mp"),
        (["shop:"], "such as shop:mp"),
        (["shup:mp"], "there is no module 'shup'"),
        (["broken:mp"], "ModuleNotFoundError: No module named 'nowhere'"),
        (["shop:mpp"], "module 'shop' has no 'mpp': did you mean 'mp'?"),
        (["shop:other"], "shop:other is no Milepost, but of type str"),
        (["shop:empty"], "shop:empty has no subscriptions"),
        (["unfinished:mp"], "it has no handler"),
        (["shop:mp", "--grace", "inf"], "a number is wanted"),
        (["shop:mp", "--processes", "0"], "--processes"),
    ],
)
@pytest.mark.usefixtures("imported")
def test_what_cannot_run_is_refused_in_one_line(run: Run, words: list[str], said: str) -> None:
    outcome = run("run", *words)
    outcome.refused(said)
    assert outcome.out == ""
