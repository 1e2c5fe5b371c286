"""Every Python snippet of the documentation runs."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from milepost.engine.declare.declaration import Declaration
from milepost.postgres import schema as log_schema
from server.process import ServerProcess

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
SERVER = "http://localhost:8480"
SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]*)(?:#([^)]*))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def snippets(page: Path) -> list[str]:
    return SNIPPET.findall(page.read_text())


@pytest.fixture(scope="module")
def migrated(embedded_url: str) -> Iterator[str]:
    """The name of a database that has the schema, to be copied."""
    with database(embedded_url, "template1") as name:
        with psycopg.connect(make_conninfo(embedded_url, dbname=name), autocommit=True) as connection:
            connection.execute(log_schema.printable_sql("milepost").encode())
        yield name


@pytest.fixture
def own_database(embedded_url: str, migrated: str) -> Iterator[str]:
    """A database for one page, which uses the schema's default name."""
    with database(embedded_url, migrated) as name:
        yield make_conninfo(embedded_url, dbname=name)


@contextmanager
def database(url: str, template: str) -> Iterator[str]:
    """A copy of a database until the end of the block."""
    name = f"docs_{uuid4().hex[:12]}"
    create = sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(create)
        yield name
        connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
def own_server(own_database: str) -> Iterator[str]:
    """The address of a server on that database, where a page needs one."""
    server = ServerProcess(own_database, "milepost")
    yield server.address
    server.kill()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
async def test_the_snippets_of_a_page_run_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    found = snippets(page)
    namespace: dict[str, object] = {"__name__": f"docs.{page.stem}"}
    if any("database_url" in each or SERVER in each for each in found):
        namespace["database_url"] = request.getfixturevalue("own_database")
    for number, written in enumerate(found):
        # A reader waits for less long than a test.
        text = written.replace("timeout=2)", "timeout=60)")
        if SERVER in text:
            text = text.replace(SERVER, request.getfixturevalue("own_server"))
        code = compile(text, f"{page.name} snippet {number}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, namespace)
        if inspect.iscoroutine(result):
            await result
    assert PAGES


@pytest.mark.parametrize("text", snippets(ROOT / "README.md"))
def test_the_programs_of_the_readme_run(text: str, tmp_path: Path) -> None:
    first, second = (
        subprocess.run(
            [sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        for _ in range(2)
    )
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert first.stdout.splitlines() == [
        "invoice for order 42",
        "handled 1",
        "1 order-42 OrderPlaced(order=42, amount=120, region='EU')",
        "2 order-43 OrderPlaced(order=43, amount=80, region='US')",
    ]
    assert second.stdout.splitlines()[:2] == ["invoice for order 42", "handled 1"]


def test_links_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for target, anchor in LINK.findall(page.read_text()):
            if "://" not in target:
                linked = page.parent / target if target else page
                assert linked.exists(), f"{page.name} links to {target}"
                assert not anchor or anchor in anchors(linked), f"{page.name} links to {target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Return what the headings of a page are called in links."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(page.read_text())
    }


def test_the_guide_lists_each_option_of_a_subscription() -> None:
    guide = (ROOT / "docs/guides/subscriptions.md").read_text()
    table = guide.split("## All options")[1].split("\n\n")[1]
    listed = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert listed == {field.name for field in fields(Declaration)} - {"name"}
