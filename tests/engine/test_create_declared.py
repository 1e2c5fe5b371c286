"""Subscriptions that a program declares: when they are created, and what is said of those that are there."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from milepost import InvalidMessage, MemoryProgress, Message, Milepost, MilepostError, NewMessage
from milepost.engine.handlers.registrar import DeclaredSubscription
from support import MakeMilepost


class Shop:
    """A program with one subscription, and what that handled."""

    def __init__(self, make_mp: MakeMilepost, **options: Any) -> None:
        self.make_mp = make_mp
        self.options = options
        self.seen: list[Any] = []

    def program(self, name: str = "live", **options: Any) -> Milepost:
        """Return a version of the program."""
        made = self.make_mp(**self.options)

        @made.subscription(name, category="order", **options)
        async def handle(message: Message[Any]) -> None:
            self.seen.append(message.data)

        return made


@pytest.fixture
def shop(make_mp: MakeMilepost) -> Shop:
    return Shop(make_mp)


async def _ignore(message: Message[Any]) -> None: ...


async def known(mp: Milepost) -> list[str]:
    """Return the names of all subscriptions."""
    return [info.name for info in await mp.subscriptions()]


async def test_opening_a_program_creates_nothing(shop: Shop) -> None:
    async with shop.program(start="now") as mp:
        await mp.append("order-1", NewMessage("placed", 1))
        assert [message.data async for message in mp.read("order-1")] == [1]
        assert (await mp.trace("order-1")).messages
        assert await known(mp) == []


@pytest.mark.parametrize("start_worker", [lambda mp: mp.running(), lambda mp: mp.running(only=["live"])])
async def test_a_worker_that_starts_creates_it(shop: Shop, start_worker: Callable[[Milepost], Any]) -> None:
    mp = shop.program(start="now")
    async with mp:
        await mp.append("order-1", NewMessage("placed", "before"))
        async with start_worker(mp):
            assert await known(mp) == ["live"]
            await mp.append("order-1", NewMessage("placed", "after"))
        await mp.run_until_idle()
    assert shop.seen == ["after"]


async def test_now_is_when_it_is_created(shop: Shop) -> None:
    async with shop.make_mp() as log:
        await log.append("order-1", NewMessage("placed", "before"))
        [created] = await shop.program(start="now").create_declared()
        assert created == DeclaredSubscription(
            group="default", name="live", created=True, status="running", differs=None
        )
        await log.append("order-1", NewMessage("placed", "between"))
        [there] = await shop.program(start="now").create_declared()
        assert not there.created
        await shop.program(start="now").run_until_idle()
    assert shop.seen == ["between"]


async def test_only_one_of_several_processes_creates_it(shop: Shop) -> None:
    found = await asyncio.gather(*(shop.program().create_declared() for _ in range(4)))
    assert sum(each.created for [each] in found) == 1


async def test_what_differs_is_said_and_left_to_a_worker(shop: Shop) -> None:
    async with shop.program(where="n > 1") as mp:
        await mp.create_declared()
        await mp.append("order-1", [NewMessage("placed", n, properties={"n": n}) for n in range(5)])
        changed = shop.program(where="n > 2", lanes=4)
        [found] = await changed.create_declared()
        assert found.differs == "filter n > 1, here n > 2; lanes 16, here 4"
        await mp.run_until_idle()
        assert shop.seen == [2, 3, 4]
        await changed.run_until_idle()
        assert [each.differs for each in await changed.create_declared()] == [None]


async def test_a_new_name_is_left_to_a_worker_too(shop: Shop) -> None:
    async with shop.program() as mp:
        await mp.create_declared()
        renamed = shop.program("lively", renamed_from="live")
        [found] = await renamed.create_declared()
        assert (found.name, found.created, found.differs) == ("live", False, "name live, here lively")
        await renamed.run_until_idle()
        assert await known(mp) == ["lively"]
        [found] = await renamed.create_declared()
        assert (found.name, found.differs) == ("lively", None)


async def test_the_name_of_one_for_consumers_is_refused(shop: Shop) -> None:
    async with shop.program() as mp:
        await mp.create_subscription("live", category="order")
        for start in (mp.create_declared, mp.run_until_idle):
            with pytest.raises(MilepostError, match="default/live: it was created for consumers"):
                await start()


async def test_a_start_beyond_the_end_of_the_log_is_refused(shop: Shop) -> None:
    """Also with another subscription that is fine: nothing is created then."""
    mp = shop.program(start=3)
    mp.subscription("other")(_ignore)
    async with mp:
        await mp.append("order-1", [NewMessage("placed", n) for n in (1, 2)])
        for start in (mp.create_declared, mp.run_until_idle):
            with pytest.raises(
                InvalidMessage, match="start: subscription 'live': the log ends at position 2, before 3"
            ):
                await start()
        assert await known(mp) == []
        await mp.append("order-1", [NewMessage("placed", n) for n in (3, 4)])
        await mp.run_until_idle()
        assert shop.seen == [4]
        # It has begun: where it would begin does not matter any more.
        await shop.program(start=99).run_until_idle()
        await shop.program("lively", start=99, renamed_from="live").run_until_idle()


async def test_one_that_is_declared_paused_waits_until_it_is_resumed(shop: Shop) -> None:
    async with shop.program(start="now", paused=True) as mp:
        assert [(each.created, each.status) for each in await mp.create_declared()] == [(True, "paused")]
        await mp.append("order-1", NewMessage("placed", 1))
        report = await mp.run_until_idle()
        assert (report["live"].handled, shop.seen) == (0, [])
        await mp.manage("live").resume()
        await mp.run_until_idle()
        assert shop.seen == [1]
        # That counts for a new one: nobody is paused again by a program that starts once more.
        assert [each.status for each in await shop.program(paused=True).create_declared()] == ["running"]
        await mp.append("order-1", NewMessage("placed", 2))
        await shop.program(paused=True).run_until_idle()
        assert shop.seen == [1, 2]
        with pytest.raises(ValueError, match="pause it or resume it"):
            await mp.manage("live").update(paused=True)


async def test_a_worker_creates_it_paused_and_goes_on_when_it_is_resumed(shop: Shop) -> None:
    async with shop.program(paused=True) as mp, mp.running():
        await mp.append("order-1", NewMessage("placed", 1))
        assert (await mp.manage("live").info()).status == "paused"
        await mp.manage("live").resume()
        async with asyncio.timeout(60):
            while not shop.seen:
                await asyncio.sleep(0.01)


async def test_paused_is_refused_where_nobody_could_resume_it(make_mp: MakeMilepost) -> None:
    with pytest.raises(ValueError, match="subscription 'live': paused: .* nobody could resume it"):
        await Shop(make_mp, progress=MemoryProgress()).program(paused=True).run_until_idle()


@pytest.mark.parametrize("elsewhere", ["memory", "another database"])
async def test_where_progress_is_kept_elsewhere(make_mp: MakeMilepost, second_url: str, elsewhere: str) -> None:
    shop = Shop(make_mp, progress=MemoryProgress() if elsewhere == "memory" else second_url)
    async with shop.program(start="now") as mp:
        await mp.append("order-1", NewMessage("placed", "before"))
        assert await known(mp) == []
        assert [each.created for each in await mp.create_declared()] == [True]
        assert [each.created for each in await mp.create_declared()] == [False]
        await mp.append("order-1", NewMessage("placed", "after"))
        await mp.run_until_idle()
    assert shop.seen == ["after"]


def test_without_asyncio(shop: Shop) -> None:
    with shop.program().sync as sync:
        assert [each.created for each in sync.create_declared()] == [True]
