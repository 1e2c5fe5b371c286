"""Read your writes: waiting until a subscription has handled an append, or saying why it has not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from milepost import (
    MemoryProgress,
    Message,
    Milepost,
    MilepostError,
    NewMessage,
    NotHandled,
    NotHandledYet,
    Park,
    Retry,
    UnknownSubscription,
    by_function,
)
from milepost.postgres import pool
from support import MakeMilepost

NEVER = 60.0
"""Seconds that no test waits."""


def new(data: Any = None, **properties: Any) -> NewMessage:
    return NewMessage("placed", data, properties=properties)


@asynccontextmanager
async def soon() -> AsyncIterator[None]:
    """Whoever waits for its time-out does not come so far."""
    async with asyncio.timeout(NEVER / 2):
        yield


class Shop:
    """A program whose handler does what the messages say."""

    def __init__(self, mp: Milepost, **options: Any) -> None:
        self.handled: list[int] = []
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        mp.subscription("shop", **{"lanes": 4, "retry": Retry(delay=1000, jitter=0), **options})(self.handle)

    async def handle(self, message: Message[Any]) -> None:
        match message.data:
            case "odd":
                raise Park("odd")
            case "bad":
                raise ValueError("bad luck")
            case "slow":
                self.begun.set()
                await self.may_end.wait()
        self.handled.append(message.position)


async def test_it_returns_when_the_append_was_handled(mp: Milepost) -> None:
    shop = Shop(mp)
    sub = mp.manage("shop")
    async with mp.running(), soon():
        for stream in ("order-1", "order-2", "order-1"):
            appended = await mp.append(stream, new())
            await sub.caught_up(appended, timeout=NEVER)
            assert appended.position in shop.handled
        appended = await mp.append("order-3", [new(), new(), new()])
        await sub.caught_up(appended, timeout=NEVER)
        assert {4, 5, 6} <= set(shop.handled)
        several = await mp.append_many({"order-4": [new(), new()], "order-5": new()})
        await sub.caught_up(several, timeout=NEVER)
        assert {7, 8, 9} <= set(shop.handled)
        await sub.caught_up(9, timeout=0)
        again = await mp.append("order-6", NewMessage("placed", id="5f3a4c1e-0d3b-4c56-9f0e-2a1b9c8d7e6f"))
        await sub.caught_up(again, timeout=NEVER)
        again = await mp.append("order-6", NewMessage("placed", id="5f3a4c1e-0d3b-4c56-9f0e-2a1b9c8d7e6f"))
        assert again.duplicate
        await sub.caught_up(again, timeout=0)


async def test_it_waits_for_everything_of_an_append_and_for_nothing_else(mp: Milepost) -> None:
    """Not only for the last message, and not for an older one of the stream."""
    shop = Shop(mp, ordered_by=None)
    sub = mp.manage("shop")
    await mp.append("order-1", new("odd"))
    async with mp.running(), soon():
        slow_first = await mp.append("order-1", [new("slow"), new()])
        await shop.begun.wait()
        await sub.caught_up(slow_first.position, timeout=NEVER)
        with pytest.raises(NotHandledYet, match=r"order-1 version 2: position 2 is"):
            await sub.caught_up(slow_first, timeout=0.1)
        shop.may_end.set()
        await sub.caught_up(slow_first, timeout=NEVER)
        assert set(shop.handled) == {2, 3}


async def test_what_is_not_for_it_needs_no_waiting(mp: Milepost) -> None:
    Shop(mp, category="order", where="n > 3")
    await mp.run_until_idle()
    sub = mp.manage("shop")
    await sub.caught_up(await mp.append("payment-1", new(n=5)), timeout=0)
    await sub.caught_up(await mp.append("order-1", [new(n=1), new(n=2)]), timeout=0)
    with pytest.raises(NotHandledYet):
        await sub.caught_up(await mp.append("order-1", [new(n=5), new(n=2)]), timeout=0)


async def test_a_parked_message_is_told_at_once(mp: Milepost) -> None:
    Shop(mp)
    sub = mp.manage("shop")
    async with mp.running(), soon():
        parked = await mp.append("order-1", new("odd"))
        with pytest.raises(NotHandled, match=r"order-1 version 1: position 1 is parked since .*: odd") as told:
            await sub.caught_up(parked, timeout=NEVER)
        assert (told.value.state, told.value.transient) == ("parked", False)
        assert not isinstance(told.value, NotHandledYet)
        behind = await mp.append("order-1", new())
        with pytest.raises(
            NotHandled, match=r"waiting behind order-1 version 1 \(position 1\), which is parked"
        ) as told:
            await sub.caught_up(behind, timeout=NEVER)
        assert (told.value.state, told.value.transient) == ("waiting", False)


async def test_one_that_is_tried_again_after_the_time_is_told_at_once(mp: Milepost) -> None:
    Shop(mp)
    async with mp.running(), soon():
        failing = await mp.append("order-1", new("bad"))
        with pytest.raises(
            NotHandledYet, match="retrying after 1 attempt: ValueError: bad luck, next at "
        ) as told:
            await mp.manage("shop").caught_up(failing, timeout=NEVER)
        assert (told.value.state, told.value.transient) == ("retrying", True)
        assert isinstance(told.value, TimeoutError)


async def test_one_that_is_tried_again_in_time_is_waited_for(mp: Milepost) -> None:
    attempts = []

    @mp.subscription("shop", retry=Retry(delay=0.2, jitter=0))
    async def handle(message: Message[Any]) -> None:
        attempts.append(message.position)
        if len(attempts) < 3:
            raise ValueError

    async with mp.running(), soon():
        await mp.manage("shop").caught_up(await mp.append("order-1", new()), timeout=NEVER)
    assert attempts == [1, 1, 1]


async def test_a_paused_subscription_is_told_at_once(mp: Milepost) -> None:
    Shop(mp)
    async with mp.running(), soon():
        await mp.manage("shop").pause()
        with pytest.raises(NotHandled, match="the subscription is paused") as told:
            await mp.manage("shop").caught_up(await mp.append("order-1", new()), timeout=NEVER)
        assert not told.value.transient


async def test_the_time_passes_and_it_says_what_it_waits_for(mp: Milepost) -> None:
    shop = Shop(mp, lanes=1)
    await mp.run_until_idle()
    sub = mp.manage("shop")
    appended = await mp.append("order-1", [new("slow"), new()])
    with pytest.raises(NotHandledYet, match="version 1 and 1 more: position 1 is not reached: .* no worker has"):
        await sub.caught_up(appended, timeout=0.05)
    async with mp.running(), soon():
        await shop.begun.wait()
        with pytest.raises(NotHandledYet) as told:
            await sub.caught_up(appended, timeout=0)
        assert told.value.state in ("not reached", "in flight")
        waiting = asyncio.create_task(sub.caught_up(appended, timeout=None))
        shop.may_end.set()
        await waiting


async def test_an_append_that_has_not_committed(mp: Milepost) -> None:
    shop = Shop(mp)
    sub = mp.manage("shop")
    async with mp.running(), soon():
        async with await psycopg.AsyncConnection.connect(mp.url) as connection:
            appended = await mp.append("order-1", new(), connection=connection)
            for given, named in ((appended, "order-1 version 1"), (appended.position, "position 1")):
                with pytest.raises(NotHandledYet, match=f"{named}, which is not in the log: the transaction"):
                    await sub.caught_up(given, timeout=0.05)
            waiting = asyncio.create_task(sub.caught_up(appended, timeout=NEVER))
            await connection.commit()
            await waiting
        assert shop.handled == [1]


async def test_whoever_lacks_the_function_waits_until_all_lanes_have_passed(make_mp: MakeMilepost) -> None:
    async with make_mp() as mp, make_mp() as other:
        shop = Shop(mp, ordered_by=by_function(lambda message: message.version))
        async with mp.running(), soon():
            appended = await mp.append("order-1", [new()] * 10)
            await other.manage("shop").caught_up(appended, timeout=NEVER)
            assert len(shop.handled) == 10


async def test_progress_in_a_second_database(make_mp: MakeMilepost, second_url: str) -> None:
    async with make_mp(progress=second_url) as mp:
        shop = Shop(mp)
        async with mp.running(), soon():
            await mp.manage("shop").caught_up(await mp.append("order-1", [new()] * 3), timeout=NEVER)
            assert len(shop.handled) == 3
            with pytest.raises(NotHandled, match="parked"):
                await mp.manage("shop").caught_up(await mp.append("order-2", new("odd")), timeout=NEVER)


async def test_what_cannot_be_waited_for(mp: Milepost, make_mp: MakeMilepost) -> None:
    appended = await mp.append("order-1", new())
    with pytest.raises(UnknownSubscription):
        await mp.manage("shop").caught_up(appended)
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout: a number of seconds from 0 on"):
            await mp.manage("shop").caught_up(appended, timeout=wrong)
    async with make_mp(progress=MemoryProgress()) as outside:
        with pytest.raises(MilepostError, match="kept outside of PostgreSQL"):
            await outside.manage("shop").caught_up(appended)


def test_from_code_that_is_not_async(make_mp: MakeMilepost) -> None:
    mp = make_mp()
    Shop(mp)
    with mp.sync, mp.sync.running():
        mp.sync.manage("shop").caught_up(mp.sync.append("order-1", new()), timeout=NEVER)
        with pytest.raises(NotHandled):
            mp.sync.manage("shop").caught_up(mp.sync.append("order-2", new("odd")), timeout=NEVER)


async def test_it_asks_little_while_it_waits(mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
    Shop(mp)
    await mp.run_until_idle()
    appended = await mp.append("order-1", [new()] * 100)
    asked: list[str] = []
    fetch = pool.fetch_rows

    async def counting(connection: Any, statement: Any, parameters: Any, seconds: Any = None) -> Any:
        asked.append(statement)
        return await fetch(connection, statement, parameters, seconds)

    monkeypatch.setattr(pool, "fetch_rows", counting)
    with pytest.raises(NotHandledYet):
        await mp.manage("shop").caught_up(appended, timeout=1)
    assert len(asked) <= 50
