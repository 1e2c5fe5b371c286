"""`milepost run --health`: what real processes answer over HTTP."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cli.program import Program, Run, Start
from milepost import Message, Milepost, NewMessage
from milepost.cli.exit_status import CommandError
from milepost.cli.run import health, reporter, reports
from milepost.cli.run.health import HealthServer, ListenAddress
from milepost.cli.run.reporter import HealthReporter
from milepost.cli.run.reports import ProcessReport, ProcessReports
from servers import Server, embedded_binaries

SHOP = """
import os
import sys
import time
from typing import Any
from milepost import Message, Milepost
from milepost.cli.run import reporter, reports

reports.MAX_SILENCE_SECONDS = float(os.environ.get("SILENCE", "600"))
reporter.REACH_SECONDS = 0.2
reporter.MAX_UNREACHED_SECONDS = float(os.environ.get("REACHED_WITHIN", "600"))

if "--lives-with" in sys.argv:
    while os.path.exists("hold"):
        time.sleep(0.01)

mp = Milepost()

@mp.subscription("invoices", category="order", lanes=4, lease=float(os.environ.get("LEASE", "60")))
async def invoice(message: Message[Any]) -> None:
    with open("handled", "a") as file:
        file.write(f"{os.getpid()}\\n")
    if message.type == "blocks":
        while not os.path.exists("go"):
            time.sleep(0.01)
"""

Answer = tuple[int, dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


class Probe:
    """Asks a program how it is."""

    def __init__(self, program: Program) -> None:
        for line in iter(program.line, ""):
            if line.startswith("health: http://"):
                self.port = int(line.partition("/healthz")[0].rpartition(":")[2])
                return
        raise AssertionError(program.complaint())

    def ask(self, path: str) -> Answer:
        head, body = send(self.port, f"GET {path} HTTP/1.1\r\nHost: shop\r\n\r\n".encode())
        return int(head.split()[1]), json.loads(body)

    def metrics(self) -> dict[tuple[str, str], float]:
        """By the name of the metric and that of the subscription."""
        head, body = send(self.port, b"GET /metrics HTTP/1.1\r\nHost: shop\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"Content-Type: text/plain; version=0.0.4" in head
        families = text_string_to_metric_families(body.decode())
        samples = [sample for family in families for sample in family.samples]
        assert {sample.labels["group"] for sample in samples if "group" in sample.labels} <= {"default"}
        return {(sample.name, sample.labels.get("subscription", "")): sample.value for sample in samples}

    async def until_metric(self, name: str, subscription: str, wanted: float) -> dict[tuple[str, str], float]:
        async with asyncio.timeout(40):
            while (found := await asyncio.to_thread(self.metrics)).get((name, subscription)) != wanted:
                await asyncio.sleep(0.05)
            return found

    async def until(self, path: str, status: int) -> list[str]:
        """Waits for a status; returns its reasons."""
        async with asyncio.timeout(60):
            while True:
                found, answer = await asyncio.to_thread(self.ask, path)
                if found == status:
                    assert answer["status"] == ("ok" if status == 200 else "unavailable")
                    reasons: list[str] = answer["reasons"]
                    return reasons
                await asyncio.sleep(0.05)

    async def until_reason(self, path: str, *wanted: str) -> None:
        """Waits until one of these is among the reasons why it is not well."""
        async with asyncio.timeout(60):
            while not any(each in reason for reason in await self.until(path, 503) for each in wanted):
                await asyncio.sleep(0.05)


def send(port: int, request: bytes) -> tuple[bytes, bytes]:
    """Head and body of what is answered to these bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(request)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


@asynccontextmanager
async def running(start: Start, folder: Path, *words: str) -> AsyncIterator[tuple[Program, Probe]]:
    program = start("run", "shop:mp", "--health", "127.0.0.1:0", *words, cwd=folder)
    yield program, await asyncio.to_thread(Probe, program)
    outcome = await asyncio.to_thread(program.end, signal.SIGTERM)
    assert outcome.status == 0, outcome


@pytest.mark.shard("processes")
async def test_a_program_becomes_ready(mp: Milepost, start: Start, folder: Path) -> None:
    async with running(start, folder) as (_, probe):
        assert await probe.until("/readyz", 200) == []
        assert probe.ask("/healthz") == (200, {"status": "ok", "reasons": []})


async def test_it_answers_while_a_handler_blocks_the_loop(
    mp: Milepost, start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SILENCE", "2")
    async with running(start, folder) as (program, probe):
        await probe.until("/readyz", 200)
        await mp.append("order-1", NewMessage("blocks"))
        [reason] = await probe.until("/healthz", 503)
        assert reason.startswith(f"process {program.process.pid} has said nothing for")
        assert probe.ask("/readyz")[0] == 503
        (folder / "go").touch()
        await probe.until("/healthz", 200)
        await probe.until("/readyz", 200)


@pytest.mark.shard("processes")
async def test_a_database_that_is_not_there(start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(embedded_binaries()).create()
    try:
        monkeypatch.setenv("MILEPOST_URL", server.url())
        monkeypatch.setenv("REACHED_WITHIN", "1.5")
        async with running(start, folder) as (_, probe):
            await probe.until("/readyz", 200)
            await asyncio.to_thread(server.stop)
            [reason] = await probe.until("/readyz", 503)
            assert "has not reached the database" in reason
            assert probe.ask("/healthz")[0] == 200
            await asyncio.to_thread(server.start)
            await probe.until("/readyz", 200)
    finally:
        server.remove()


@pytest.mark.shard("processes")
async def test_the_parent_answers_for_all(
    mp: Milepost, start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SILENCE", "3")
    monkeypatch.setenv("LEASE", "1")
    (folder / "hold").touch()

    def handled() -> list[int]:
        return [int(line) for line in (folder / "handled").read_text().splitlines()]

    async with running(start, folder, "--processes", "2", "--grace", "5") as (program, probe):
        [*reasons] = await probe.until("/readyz", 503)
        assert all("is starting" in reason or "do not run" in reason for reason in reasons)
        (folder / "hold").unlink()
        await probe.until("/readyz", 200)
        await probe.until("/healthz", 200)
        await mp.append("order-1", NewMessage("placed"))
        async with asyncio.timeout(40):
            while not (folder / "handled").exists() or not handled():
                await asyncio.sleep(0.05)
        [child] = set(handled())
        assert child != program.process.pid
        os.kill(child, signal.SIGSTOP)
        await probe.until_reason("/healthz", f"process {child} has said nothing")
        (folder / "hold").touch()
        os.kill(child, signal.SIGKILL)
        await probe.until("/healthz", 200)
        await probe.until_reason("/readyz", "1 of 2 processes do not run", "is starting")
        (folder / "hold").unlink()
        await probe.until("/readyz", 200)


async def test_metrics_of_a_process(mp: Milepost, start: Start, folder: Path) -> None:
    async with running(start, folder) as (_, probe):
        await probe.until("/readyz", 200)
        for number in range(5):
            await mp.append(f"order-{number}", NewMessage("placed"))
        found = await probe.until_metric("milepost_messages_handled_total", "invoices", 5)
        assert found["milepost_handling_seconds_count", "invoices"] == 5
        found = await probe.until_metric("milepost_log_horizon_position", "", 5)
        found = await probe.until_metric("milepost_lag_positions", "invoices", 0)
        assert found["milepost_lanes_held", "invoices"] == 4
        assert found["milepost_build_info", ""] == 1
        assert probe.ask("/readyz")[0] == 200


@pytest.mark.shard("processes")
async def test_metrics_of_all_processes_are_added_up(
    mp: Milepost, start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASE", "1")
    total = ("milepost_messages_handled_total", "invoices")
    appended = 0

    async def append() -> dict[tuple[str, str], float]:
        """Appends to every lane, and waits until all of it is counted."""
        nonlocal appended
        for number in range(40):
            await mp.append(f"order-{number}", NewMessage("placed"))
        appended += 40
        return await probe.until_metric(*total, appended)

    def children() -> set[int]:
        return {int(line) for line in (folder / "handled").read_text().splitlines()}

    async with running(start, folder, "--processes", "2", "--grace", "5") as (_, probe):
        await probe.until("/readyz", 200)
        await append()
        async with asyncio.timeout(40):
            # The lanes are shared once both are there.
            while len(children()) < 2:
                await append()
        # What is written down does not come again.
        await probe.until_metric("milepost_lag_positions", "invoices", 0)
        (folder / "hold").touch()
        os.kill(children().pop(), signal.SIGKILL)
        # What it did stays counted, and its lanes are counted where they are then.
        await probe.until("/readyz", 503)
        assert (await asyncio.to_thread(probe.metrics))[total] == appended
        (folder / "hold").unlink()
        await probe.until("/readyz", 200)
        await probe.until_metric("milepost_lanes_held", "invoices", 4)
        found = await append()
        assert found["milepost_handling_seconds_count", "invoices"] == appended


def test_an_address_that_is_taken_is_refused(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(reports, "MAX_SILENCE_SECONDS", reports.MAX_SILENCE_SECONDS)
    monkeypatch.setattr(reporter, "REACH_SECONDS", reporter.REACH_SECONDS)
    monkeypatch.setattr(reporter, "MAX_UNREACHED_SECONDS", reporter.MAX_UNREACHED_SECONDS)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        outcome = run("run", "shop:mp", "--health", address)
        outcome.refused(f"--health {address}")
        assert outcome.out == ""
    run("run", "shop:mp", "--health", "nowhere").refused(":8481 for every interface")
    del sys.modules["shop"]


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (":8481", None, 8481),
        ("8481", "127.0.0.1", 8481),
        ("127.0.0.1:8481", "127.0.0.1", 8481),
        ("shop.internal:80", "shop.internal", 80),
        ("[::1]:8481", "::1", 8481),
        ("[::]:0", "::", 0),
    ],
)
def test_addresses(text: str, host: str | None, port: int) -> None:
    assert ListenAddress.of(text) == ListenAddress(host, port)


@pytest.mark.parametrize(
    "text", ["", ":", "host", "host:", ":x", ":-1", ":65536", "::1:8481", "[::1", "[::1]8481", ":٣"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(CommandError, match="an address is wanted"):
        ListenAddress.of(text)


@pytest.fixture
def of_one() -> Iterator[tuple[ProcessReports, int]]:
    """What one process says, and the port at which it can be asked for."""
    reports = ProcessReports(1, "default")
    with HealthServer(ListenAddress("127.0.0.1", 0), reports) as server:
        yield reports, server.address.port


async def test_who_holds_the_horizon_is_told_and_it_is_ready(
    mp: Milepost, of_one: tuple[ProcessReports, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("milepost.log.protocol.HOLDER_NAMED_SECONDS", 0.0)
    monkeypatch.setattr(reporter, "REPORT_SECONDS", 0.02)
    monkeypatch.setattr(reporter, "REACH_SECONDS", 0.02)

    @mp.subscription("invoices", category="order")
    async def invoice(message: Message[Any]) -> None: ...

    reports, port = of_one
    reports.add_process(1)

    async def ask() -> Answer:
        head, body = await asyncio.to_thread(send, port, b"GET /readyz HTTP/1.1\r\n\r\n")
        return int(head.split()[1]), json.loads(body)

    async with (
        HealthReporter(mp, lambda said: reports.record(1, said)).reporting(),
        mp.running(),
        asyncio.timeout(60),
    ):
        async with mp.log.database.connection() as holder, holder.transaction():
            await mp.append("order-1", NewMessage("placed"), connection=holder)
            while "horizon" not in (answered := await ask())[1]:
                await asyncio.sleep(0.02)
            status, body = answered
            assert 0 < body["horizon"].pop("held_seconds") < 60
            held = {"held_positions": 1, "held_by": f"pid {holder.info.backend_pid}"}
            assert (status, body) == (200, {"status": "ok", "reasons": [], "horizon": held})
        while (await ask()) != (200, {"status": "ok", "reasons": []}):
            await asyncio.sleep(0.02)


class TestServer:
    """What strangers can send."""

    @pytest.fixture
    def reports(self) -> ProcessReports:
        return ProcessReports(1, "default")

    @pytest.fixture
    def port(self, reports: ProcessReports) -> Iterator[int]:
        with HealthServer(ListenAddress("127.0.0.1", 0), reports) as server:
            yield server.address.port

    @pytest.mark.parametrize(
        ("request_", "status"),
        [
            (b"GET /healthz HTTP/1.1\r\n\r\n", 200),
            (b"GET /healthz?verbose=1 HTTP/1.0\r\nHost: x\r\n\r\n", 200),
            (b"GET http://shop/healthz HTTP/1.1\r\n\r\n", 200),
            (b"GET /readyz HTTP/1.1\r\n\r\n", 503),
            (b"HEAD /readyz HTTP/1.1\r\n\r\n", 503),
            (b"GET / HTTP/1.1\r\n\r\n", 404),
            (b"GET /healthz/../etc HTTP/1.1\r\n\r\n", 404),
            (b"POST /healthz HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405),
            (b"GET /healthz\r\n\r\n", 400),
            (b"GET  /healthz HTTP/1.1\r\n\r\n", 400),
            (b"GET /healthz HTTP/2.0\r\n\r\n", 400),
            (b"GET http://[x/healthz HTTP/1.1\r\n\r\n", 400),
            (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
            (b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", 431),
        ],
    )
    def test_requests(self, port: int, request_: bytes, status: int) -> None:
        try:
            head, body = send(port, request_)
        except ConnectionError:
            # It need not read all of what it refuses.
            assert status == 431
            return
        assert head.split()[1] == str(status).encode()
        if status in (200, 503) and not request_.startswith(b"HEAD"):
            assert json.loads(body)["status"] == ("ok" if status == 200 else "unavailable")
        else:
            assert body == b""

    def test_metrics(self, port: int, reports: ProcessReports) -> None:
        for request, has_body in ((b"GET", True), (b"HEAD", False)):
            head, body = send(port, request + b" /metrics HTTP/1.1\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK")
            assert (b"milepost_build_info" in body) is has_body
        head, _ = send(port, b"POST /metrics HTTP/1.1\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 405 ")

    def test_metrics_without_the_package(self, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(sys.modules, "milepost.contrib.prometheus", raising=False)
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        head, body = send(port, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 501 Not Implemented")
        assert json.loads(body)["reasons"][0].endswith('pip install "milepost[prometheus]"')

    def test_who_is_slow_is_left(self, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(health, "MAX_REQUEST_SECONDS", 0.3)
        with socket.create_connection(("127.0.0.1", port), timeout=60) as slow:
            slow.sendall(b"GET /healthz")
            assert slow.recv(1) == b""

    def test_silent_connections_keep_nobody_out(self, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(health, "MAX_REQUEST_SECONDS", 3600.0)
        with ExitStack() as stack:
            silent = [
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
                for _ in range(health.MAX_CONNECTIONS + 1)
            ]
            for _ in range(3):
                assert send(port, b"GET /healthz HTTP/1.1\r\n\r\n")[0].startswith(b"HTTP/1.1 200 ")
            assert silent[0].recv(1) == b""
            silent[-1].sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
            assert silent[-1].recv(12) == b"HTTP/1.1 200"


class TestReports:
    def test_from_the_start_to_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = 1000.0
        monkeypatch.setattr(reports, "monotonic", lambda: now)
        known = ProcessReports(2, "default")
        assert known.troubles() == []
        assert known.obstacles() == ["2 of 2 processes do not run: the next is started soon"]
        known.add_process(7)
        known.add_process(8)
        assert known.obstacles() == ["process 7 is starting", "process 8 is starting"]
        now += 61
        known.record(7, ProcessReport("has not reached the database for 20 s"))
        assert known.troubles() == ["process 8 has not begun within 60 s"]
        assert known.obstacles() == [
            "process 7 has not reached the database for 20 s",
            "process 8 has not begun within 60 s",
        ]
        known.record(7, ProcessReport(None))
        known.record(8, ProcessReport(None))
        assert (known.troubles(), known.obstacles()) == ([], [])
        now += 11
        assert known.troubles()[0] == "process 7 has said nothing for 11 s: its event loop is blocked"
        known.remove_process(7)
        known.remove_process(8)
        known.record(8, ProcessReport(None))
        assert known.troubles() == []
