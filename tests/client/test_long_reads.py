"""Reads that find nothing for so long that the server ends them: the client goes on where it was."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

import milepost
from contract.both import order
from milepost import Milepost, MilepostError, NewMessage
from milepost.log import query
from milepost.log.postgres.reader import Reader
from milepost.log.query import Page, Query
from milepost.server import messages
from server.websocket.conftest import serving
from support import MakeMilepost

STUCK = (2, 4)
"""Which of the statements do not end."""


class Deadlines:
    """Stands for `asyncio` where a read of the server is limited in time: a test says when that is over."""

    def __init__(self) -> None:
        self._last: asyncio.Timeout | None = None

    def timeout(self, seconds: float) -> asyncio.Timeout:
        self._last = asyncio.timeout(seconds)
        return self._last

    async def stuck(self) -> None:
        """A statement that does not end before the time of its read is over."""
        assert self._last is not None
        self._last.reschedule(asyncio.get_running_loop().time())
        await asyncio.Event().wait()


@pytest.fixture
def deadlines(monkeypatch: pytest.MonkeyPatch) -> Deadlines:
    found = Deadlines()
    monkeypatch.setattr(messages, "asyncio", found)
    return found


@pytest.fixture
def looks(deadlines: Deadlines, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where each statement of a read begins, of which some get stuck."""
    begun: list[int] = []
    log_page = Reader.log_page

    async def page(self: Reader, *args: Any, low: int, **options: Any) -> Page:
        begun.append(low)
        if len(begun) in STUCK:
            await deadlines.stuck()
        return await log_page(self, *args, low=low, **options)

    monkeypatch.setattr(Reader, "log_page", page)
    for name in ("FIRST_SPAN_POSITIONS", "MAX_SPAN_POSITIONS"):
        monkeypatch.setattr(query, name, 10)
    return begun


class Stuck:
    """Runs the statements of a read of one stream, of which some get stuck."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self.begun: list[tuple[int, int]] = []
        """After which version, and up to which, each of them looked."""
        self.executor: Any = None

    async def execute(self, statement: Any, parameters: dict[str, Any]) -> Any:
        self.begun.append((parameters["low"], parameters["high"]))
        if len(self.begun) in STUCK:
            await self._deadlines.stuck()
        # As with a filter of which a statement can know nothing.
        return await self.executor.execute(statement, {**parameters, "where": None})


@pytest.fixture
def stuck(deadlines: Deadlines, monkeypatch: pytest.MonkeyPatch) -> Stuck:
    """What reads of one stream get stuck in; each of their statements looks at ten messages."""
    found = Stuck(deadlines)
    stream_pages = Reader.stream_pages

    def pages(self: Reader, executor: Any, *args: Any, **options: Any) -> AsyncGenerator[Page, None]:
        found.executor = executor
        return stream_pages(self, cast(Any, found), *args, **options)

    monkeypatch.setattr(Reader, "stream_pages", pages)
    monkeypatch.setattr(Query, "page_size", lambda *_: 10)
    return found


@pytest.mark.parametrize(("backwards", "found"), [(False, 55), (True, 5)])
async def test_that_of_one_stream_does_too(
    mp: Milepost, make_mp: MakeMilepost, stuck: Stuck, backwards: bool, found: int
) -> None:
    await mp.append("order-1", [order(n, hit=n in (5, 55)) for n in range(60)])
    bounds: dict[str, Any] = {"before_version": 51} if backwards else {"after_version": 10}
    async with serving(make_mp(), read_seconds=600) as server, milepost.connect(server.address) as client:
        read = client.read("order-1", where="hit", backwards=backwards, **bounds)
        assert [message.data["n"] async for message in read] == [found]
    begun = [high for _, high in stuck.begun] if backwards else [low for low, _ in stuck.begun]
    at = [50, 40, 40, 30, 30, 20, 10] if backwards else [10, 20, 20, 30, 30, 40, 50]
    assert begun[: len(at)] == at


@pytest.mark.parametrize(("backwards", "found"), [(False, 55), (True, 5)])
async def test_it_goes_on(
    mp: Milepost, make_mp: MakeMilepost, looks: list[int], backwards: bool, found: int
) -> None:
    await mp.append("order-1", [order(n, hit=n in (5, 55)) for n in range(60)])
    bounds: dict[str, Any] = {"before": 51} if backwards else {"after": 10}
    async with serving(make_mp(), read_seconds=600) as server, milepost.connect(server.address) as client:
        seen = [m.data["n"] async for m in client.read(where="hit", backwards=backwards, **bounds)]
    assert seen == [found]
    at = [40, 30, 30, 20, 20, 10, 0] if backwards else [10, 20, 20, 30, 30, 40, 50]
    assert looks == at


async def test_one_that_gets_nowhere_ends(mp: Milepost, make_mp: MakeMilepost, looks: list[int]) -> None:
    await mp.append("order-1", NewMessage("a"))
    looks.append(0)
    async with serving(make_mp(), read_seconds=600) as server, milepost.connect(server.address) as client:
        with pytest.raises(MilepostError, match="Nothing that matches was found in 600 seconds"):
            _ = [message async for message in client.read(where="hit")]
