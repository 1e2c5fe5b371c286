"""Workers inside another program: a handler that hangs does not take the program with it."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from milepost import Message, Milepost, MilepostError, NewMessage, Retry, Unavailable, Unhealthy
from milepost.engine.handlers import program, slots
from milepost.engine.handlers.program import MAX_RESTARTS
from milepost.engine.handlers.slots import Slot
from milepost.engine.handlers.worker import Worker
from support import MakeMilepost

GRACE = 0.05
AT_ONCE = Retry(attempts=20, delay=0, jitter=0)


class Hanging:
    """A handler that does not return the first times that it is called, before the test is over."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.seen: list[int] = []
        self.over = threading.Event()

    def handle(self, message: Message[Any]) -> None:
        """Hang, or note the message."""
        if self.times:
            self.times -= 1
            self.over.wait()
        else:
            self.seen.append(message.position)

    async def handles(self, position: int) -> None:
        """Wait until it has handled a message."""
        while position not in self.seen:
            await asyncio.sleep(0.01)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    """A handler whose calls have no time if they are to hang, and more than enough otherwise."""
    made, begin = Hanging(1), Slot.begin
    monkeypatch.setattr(slots, "OVERDUE_CHECK_SECONDS", (0.01, 0.01))
    monkeypatch.setattr(Slot, "begin", lambda slot, _: begin(slot, 0.01 if made.times else 600))
    yield made
    made.over.set()


def declare(mp: Milepost, hanging: Hanging) -> None:
    """Declare a subscription with the handler."""
    mp.subscription("hanging", category="order", lanes=1, timeout=600, retry=AT_ONCE)(hanging.handle)


async def until_unhealthy(mp: Milepost, words: str) -> None:
    """Wait until the health call fails with these words."""
    said = ""
    while words not in said:
        await asyncio.sleep(0.01)
        try:
            mp.health()
        except Unhealthy as error:
            said = str(error)


async def test_the_program_goes_on_and_its_workers_start_again(make_mp: MakeMilepost, hanging: Hanging) -> None:
    mp = make_mp()
    declare(mp, hanging)
    async with asyncio.timeout(60), mp.running(grace=GRACE):
        hung = await mp.append("order-1", NewMessage("placed"))
        other = await mp.append("order-2", NewMessage("placed"))
        await hanging.handles(hung.position)
        await hanging.handles(other.position)
        mp.health()


async def test_after_three_times_the_health_call_fails_and_appends_go_on(
    make_mp: MakeMilepost, hanging: Hanging, caplog: pytest.LogCaptureFixture
) -> None:
    mp = make_mp()
    hanging.times = 100
    declare(mp, hanging)
    async with asyncio.timeout(60), mp.running(grace=GRACE):
        await mp.append("order-1", NewMessage("placed"))
        await until_unhealthy(mp, "handlers have hung 4 times")
        assert hanging.times == 100 - 1 - MAX_RESTARTS
        assert (await mp.append("order-2", NewMessage("placed"))).position == 2
        # Others may have its lanes.
        assert (await mp.manage("hanging").info()).owners == ()
        hanging.times = 0
        await mp.run_until_idle()
        assert sorted(hanging.seen) == [1, 2]
    said = [record.message for record in caplog.records if record.levelname == "CRITICAL"]
    assert [f"{number} of 3 times" in text for number, text in enumerate(said[:3], start=1)] == [True] * 3
    assert "Milepost.health() fails from now on" in said[3]


async def test_while_a_coroutine_ignores_that_its_time_is_up_the_health_call_fails(
    make_mp: MakeMilepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    mp, seen, go_on = make_mp(), list[int](), asyncio.Event()
    monkeypatch.setattr(slots, "OVERDUE_CHECK_SECONDS", (0.01, 0.01))

    @mp.subscription("hanging", category="order", lanes=1, timeout=0.01, retry=AT_ONCE)
    async def handle(message: Message[Any]) -> None:
        seen.append(message.position)
        while not go_on.is_set():
            with suppress(asyncio.CancelledError):
                await go_on.wait()

    async with asyncio.timeout(60), mp.running(grace=GRACE):
        await mp.append("order-1", NewMessage("placed"))
        await until_unhealthy(mp, "ignores that its time is up")
        assert (await mp.append("order-2", NewMessage("placed"))).position == 2
        go_on.set()
        while seen != [1, 2]:
            await asyncio.sleep(0.01)
        mp.health()


async def test_an_outage_while_they_start_again_is_waited_for(
    make_mp: MakeMilepost, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    mp, running, starts = make_mp(), Worker.running, 0
    declare(mp, hanging)

    def second_fails(worker: Worker) -> Any:
        nonlocal starts
        starts += 1
        if starts == 2:
            raise Unavailable("starting")
        return running(worker)

    monkeypatch.setattr(program, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(Worker, "running", second_fails)
    async with asyncio.timeout(60), mp.running(grace=GRACE):
        await hanging.handles((await mp.append("order-1", NewMessage("placed"))).position)
    assert starts == 3


async def test_an_error_that_no_worker_would_mend_ends_the_block(make_mp: MakeMilepost, hanging: Hanging) -> None:
    mp = make_mp()
    hanging.times = 0
    declare(mp, hanging)

    async def run() -> None:
        async with mp.running():
            raise MilepostError("of the block")

    async with mp:
        with pytest.raises(MilepostError, match="of the block"):
            await run()
        mp.health()
        await mp.create_subscription("other")
        mp.subscription("other")(hanging.handle)
        with pytest.raises(MilepostError, match="it was created for consumers"):
            async with mp.running():
                raise AssertionError
        with pytest.raises(Unhealthy, match="ended with an error: .*it was created for consumers"):
            mp.health()
        async with mp.running(only=["hanging"]):
            mp.health()


async def test_one_that_is_not_open_is_not_healthy(make_mp: MakeMilepost) -> None:
    mp = make_mp()
    with pytest.raises(Unhealthy, match="not open"):
        mp.health()
    async with mp:
        mp.health()
    with pytest.raises(Unhealthy, match="not open"):
        mp.health()


def test_without_asyncio(make_mp: MakeMilepost, hanging: Hanging) -> None:
    mp = make_mp()
    declare(mp, hanging)
    with mp.sync as sync:
        sync.health()
        with sync.running(grace=GRACE):
            sync.append("order-1", NewMessage("placed"))
            limit = threading.Event()
            while not hanging.seen:
                limit.wait(0.01)
            sync.health()
