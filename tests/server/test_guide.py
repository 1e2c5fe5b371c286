"""What the pages about the server say is so."""

import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from server.process import StartServer

DOCS = Path(__file__).parents[2] / "docs"
SESSION = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
REQUEST = re.compile(r"^\| `([A-Z]+) (/\S*)` \| (\w*) ?\|", re.MULTILINE)


def test_the_sessions_of_the_guide(start_server: StartServer, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    server = start_server()
    commands = COMMAND.findall("".join(SESSION.findall((DOCS / "guides" / "server.md").read_text())))
    assert len(commands) > 10
    for command, expected in commands:
        line = command.replace("localhost:8480", f"localhost:{server.port}")
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        shown = done.stdout.rstrip("\n") + "\n"
        assert done.returncode == 0, (command, done)
        assert re.fullmatch(re.escape(expected).replace("…", ".*?"), shown), (command, expected, shown)


async def test_the_reference_has_every_request(client: httpx.AsyncClient) -> None:
    described = {
        (method.upper(), path, re.search(r"the role `(\w+)`", operation["description"]))
        for path, operations in (await client.get("/openapi.json")).json()["paths"].items()
        for method, operation in operations.items()
    }
    known = {(method, path, role[1] if role else "") for method, path, role in described}
    listed = REQUEST.findall((DOCS / "reference" / "http.md").read_text())
    assert set(listed) == known | {("GET", "/openapi.json", "")}
    assert len(listed) == len(known) + 1
