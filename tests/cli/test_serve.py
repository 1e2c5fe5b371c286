"""`milepost serve`, as a program of its own."""

import asyncio
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cli.program import Program, Run, Start
from milepost import Milepost, NewMessage
from milepost.server.access.permissions import TokenRole
from milepost.server.access.tokens import TokenStore
from server.followers import following
from server.websocket.talking import talking
from servers import make_certificate


def served(program: Program) -> str:
    """The address that it says."""
    line = program.line()
    assert line.startswith("serving at http"), (line, program.process.communicate())
    return line.split()[-1]


async def test_it_serves_until_a_signal(mp: Milepost, start: Start) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        program = start("serve", "--port", "0")
        async with httpx.AsyncClient(base_url=served(program)) as client:
            assert (await client.get("/v1/head")).json() == {"position": 0}
            outcome = await asyncio.to_thread(program.end, number)
        assert (outcome.status, outcome.err) == (0, "")


@pytest.mark.shard("processes")
async def test_it_says_that_other_servers_send_nobody_to_this_machine(mp: Milepost, start: Start) -> None:
    """Its database is elsewhere, and it listens where only this machine reaches it."""
    hosts = f"{conninfo_to_dict(mp.url)['host']},db.invalid"
    program = start("serve", "--port", "0", "--url", make_conninfo(mp.url, host=hosts))
    served(program)
    outcome = await asyncio.to_thread(program.end, signal.SIGTERM)
    assert "clients of other servers on this database are not sent here" in outcome.err


@pytest.mark.shard("processes")
async def test_a_signal_right_after_it_says_where(mp: Milepost, start: Start) -> None:
    """It has its handlers by then, and leaves nothing behind."""
    for _ in range(3):
        program = start("serve", "--port", "0")
        served(program)
        outcome = await asyncio.to_thread(program.end, signal.SIGTERM)
        assert (outcome.status, outcome.err) == (0, "")
        assert await mp.nodes() == []


async def test_followers_and_whoever_waits_are_told_at_the_end(mp: Milepost, start: Start) -> None:
    await mp.create_subscription("shipping")
    await mp.append("order-1", NewMessage("a"))
    program = start("serve", "--port", "0", "--grace", "20")
    address = served(program)
    async with (
        httpx.AsyncClient(base_url=address, timeout=40) as client,
        httpx.AsyncClient(base_url=address, timeout=40) as another,
        following(client) as events,
    ):
        await events.messages(1)
        # On a connection that the server has: what is asked on another one afterwards is answered later.
        await another.get("/v1/head")
        params = {"position": 1, "timeout": 60}
        waiting = asyncio.create_task(another.get("/v1/subscriptions/default/shipping/caught-up", params=params))
        for _ in range(10):
            await client.get("/v1/head")
        ending = asyncio.create_task(asyncio.to_thread(program.end, signal.SIGTERM))
        last = await events.next()
        assert (last["event"], "/problems/going-away" in last["data"]) == ("problem", True)
        assert (await waiting).json()["type"] == "/problems/going-away"
        outcome = await ending
    assert (outcome.status, outcome.err) == (0, "")


async def test_what_is_open_is_finished(mp: Milepost, start: Start) -> None:
    """An append whose body is still arriving when the signal comes is answered."""
    program = start("serve", "--port", "0", "--grace", "20")
    address = served(program)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
    writer.write(
        b"POST /v1/streams/a-1 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 24\r\nExpect: 100-continue\r\n\r\n"
    )
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    ending = asyncio.create_task(asyncio.to_thread(program.end, signal.SIGTERM))
    async with asyncio.timeout(40):
        # Nothing new begins.
        while await asyncio.to_thread(is_open, address):
            await asyncio.sleep(0.02)
    writer.write(b'{"type": "a", "data": 1}')
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close" in answer
    assert (await ending).status == 0
    assert await mp.last("a-1") == 1


def is_open(address: str) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=30):
            return True
    except OSError:
        return False


@pytest.mark.shard("processes")
async def test_the_grace_ends(mp: Milepost, start: Start) -> None:
    program = start("serve", "--port", "0", "--grace", "0.5")
    port = int(served(program).rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as stuck:
        stuck.sendall(
            b"POST /v1/streams/a-1 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\nExpect: 100-continue\r\n\r\n"
        )
        assert await asyncio.to_thread(stuck.recv, 100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        outcome = await asyncio.to_thread(program.end, signal.SIGTERM)
    assert outcome.status == 0


async def test_elsewhere_a_token_is_asked_for(mp: Milepost, start: Start) -> None:
    program = start("serve", "--host", "0.0.0.0", "--port", "0")
    port = served(program).rpartition(":")[2]
    assert "there is no token yet" in program.complaint()
    assert "clear text" in program.complaint()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        assert (await client.get("/v1/head")).status_code == 401
        secret = await TokenStore(mp).make("shop", [TokenRole.READ])
        headers = {"authorization": f"Bearer {secret}"}
        async with asyncio.timeout(40):
            while (await client.get("/v1/head", headers=headers)).status_code != 200:
                await asyncio.sleep(0.05)


@pytest.mark.shard("processes")
async def test_tokens_on_this_machine_too(mp: Milepost, start: Start) -> None:
    program = start("serve", "--port", "0", "--tokens")
    async with httpx.AsyncClient(base_url=served(program)) as client:
        assert (await client.get("/v1/head")).status_code == 401
        assert (await client.get("/healthz")).status_code == 200


@pytest.mark.shard("processes")
async def test_names(mp: Milepost, start: Start) -> None:
    program = start("serve", "--port", "0", "--allow-host", "Milepost.internal")
    async with httpx.AsyncClient(base_url=served(program)) as client:
        for host, status in (("milepost.internal", 200), ("localhost", 200), ("evil.example", 421)):
            assert (await client.get("/v1/head", headers={"host": host})).status_code == status


async def test_tls(mp: Milepost, start: Start, tmp_path: Path) -> None:
    certificate, key = await asyncio.to_thread(make_certificate, tmp_path)
    program = start("serve", "--port", "0", "--tls-cert", str(certificate), "--tls-key", str(key))
    address = served(program)
    assert address.startswith("https://")
    context = ssl.create_default_context(cafile=str(certificate))
    async with httpx.AsyncClient(base_url=address, verify=context) as client:
        answer = await client.get("/v1/head")
        assert answer.json() == {"position": 0}
        assert "strict-transport-security" in answer.headers
    await mp.create_subscription("shipping")
    await mp.append("order-1", NewMessage("a"))
    async with talking(address, ssl=context) as talk:
        assert (await talk.hello())["node"] == address
        [delivery] = await talk.take(1)
        ending = asyncio.create_task(asyncio.to_thread(program.end, signal.SIGTERM))
        await talk.say("settle", ref=1, ack=[delivery["id"]])
        await talk.expect("settled", ref=1, refused=[])
        await talk.ended("going away", 1001)
    outcome = await ending
    assert (outcome.status, outcome.err) == (0, "")


@pytest.mark.shard("processes")
async def test_it_says_where_it_is(mp: Milepost, start: Start) -> None:
    start("serve", "--port", "0", "--advertise", "https://milepost-1.example:8480/")
    async with asyncio.timeout(30):
        while not (nodes := await mp.nodes()):
            await asyncio.sleep(0.02)
    assert [node.address for node in nodes] == ["https://milepost-1.example:8480"]


@pytest.mark.parametrize("url", ["node-1:8480", "ftp://a", "http://", "http://a b", "http://u:p@a", "http://a?b"])
def test_what_is_no_address(run: Run, url: str) -> None:
    run("serve", "--port", "0", "--advertise", url).refused("--advertise", "is wanted")


@pytest.mark.shard("processes")
async def test_an_embedded_one(start: Start, folder: Path) -> None:
    program = start("serve", "--embedded", "--port", "0", "--tokens", cwd=folder)
    address = served(program)
    assert "`milepost token make NAME --role read --url embedded`" in program.complaint()
    made = start("token", "make", "shop", "--role", "append", "--url", "embedded", cwd=folder).end()
    headers = {"authorization": f"Bearer {made.out.strip()}"}
    async with httpx.AsyncClient(base_url=address, headers=headers) as client:
        assert (await client.post("/v1/streams/a-1", json={"type": "a"})).json()["position"] == 1
        assert (await asyncio.to_thread(program.end, signal.SIGTERM)).status == 0


def test_refusals(run: Run, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        run("serve", "--port", port).refused(f"--host 127.0.0.1 --port {port}", "in use")
    run("serve", "--host", "no.such.host.invalid").refused("--host no.such.host.invalid")
    run("serve", "--embedded", "--url", "postgresql://x").refused("exclude each other")
    run("serve", "--grace", "inf").refused("a number is wanted")
    run("serve", "--tls-cert", "x").refused("go together")
    run("serve", "--tls-cert", "x", "--tls-key", "y").refused("No such file")
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing")
    run("serve", "--tls-cert", str(wrong), "--tls-key", str(wrong)).refused("--tls-cert and --tls-key")


def test_a_database_that_is_not_there(run: Run) -> None:
    run("serve", "--port", "0", "--url", "postgresql://127.0.0.1:1/x").refused("is the server running")


def test_without_the_packages_it_says_what_to_install() -> None:
    """The base install has no server: the other commands work, and this one names the extra."""
    program = """
import sys
for name in ("litestar", "uvicorn", "httptools"):
    sys.modules[name] = None
from milepost.cli import main
assert main(["filter", "a == 1"]) == 0
sys.exit(main(["serve", "--url", "postgresql://x"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == 'milepost: the server needs more packages: pip install "milepost[server]"\n'
