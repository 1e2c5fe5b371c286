"""`milepost subscriptions rewind`: progress in another database goes back with a log that lost messages."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from cli.program import Run
from lossy import Lossy, lossy
from milepost import LogMismatch, Message, Milepost, NewMessage, Park
from support import MakeMilepost

Seen = list[tuple[int, str]]


@pytest.fixture
def program(make_mp: MakeMilepost, second_url: str) -> Callable[[Seen], Milepost]:
    """Makes a program with progress elsewhere, which notes what it handles and parks what is odd."""

    def program(seen: Seen) -> Milepost:
        mp = make_mp(progress=second_url)

        @mp.subscription("lines", category="order", lanes=2)
        async def handle(message: Message[Any]) -> None:
            seen.append((message.position, message.type))
            if message.data == "odd":
                raise Park("odd")

        return mp

    return program


async def lose(server: Lossy, make_mp: MakeMilepost, mp: Milepost) -> None:
    """Ten messages stay, ten that were handled are lost, and fifteen come in their place."""
    async with mp:
        for number in range(10):
            await mp.append(f"order-{number % 3}", NewMessage("kept", "odd" if number == 5 else number))
        await mp.run_until_idle()
        await server.flush()
        for number in range(10):
            await mp.append(f"order-{number % 3}", NewMessage("lost", "odd" if number == 5 else number))
        await mp.run_until_idle()
    await server.crash()
    async with make_mp() as log:
        for number in range(15):
            await log.append(f"order-{number % 3}", NewMessage("new"))


def test_what_came_in_the_place_of_lost_messages_is_handled(
    database_url: str, schema: str, second_url: str, make_mp: MakeMilepost, program: Any, run: Run
) -> None:
    async def story() -> None:
        async with lossy(database_url, schema) as server:
            await lose(server, make_mp, program([]))
        with pytest.raises(LogMismatch, match="milepost subscriptions rewind"):
            await program([]).__aenter__()

    async def go_on() -> None:
        seen: Seen = []
        async with program(seen) as mp:
            await mp.run_until_idle()
            # Those of one stream wait behind a message that was parked before.
            assert sorted(seen) == [(11 + number, "new") for number in range(15) if number % 3 != 2]
            info = await mp.manage("lines").info()
            assert (info.parked, info.waiting) == (1, 6)
            assert [each.position async for each in mp.manage("lines").deliveries(state="parked")] == [6]

    asyncio.run(story())
    words = ("subscriptions", "rewind", "--progress", second_url)
    run(*words).refused("back to position 10", "--yes")
    done = run(*words, "--yes").done()
    assert "default/lines" in done.out
    assert "goes on after position 10" in done.out
    asyncio.run(go_on())
    assert "nothing has to be done" in run(*words, "--yes").done().out


def test_progress_with_the_log_needs_nothing(run: Run) -> None:
    run("subscriptions", "rewind").refused("went back together with it")


def test_another_log_is_refused(second_url: str, program: Any, run: Run) -> None:
    async def handle_one() -> None:
        async with program([]) as mp:
            await mp.append("order-1", NewMessage("kept"))
            await mp.run_until_idle()

    asyncio.run(handle_one())
    own = make_conninfo(second_url, application_name="own")
    run("subscriptions", "rewind", "--url", own, "--progress", second_url, "--yes").refused("another log")
