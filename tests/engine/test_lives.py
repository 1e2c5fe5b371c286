"""A server that lost its newest commits: what comes in their place is handled, whoever handles it.

The worst moment is forced: a lane is had again before the process knows that positions are drawn anew, while it
still has the lost messages at hand.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest

from lossy import Lossy, lossy, until_available
from milepost import Checkpoint, MemoryProgress, Message, Milepost, NewMessage, Transaction, Unavailable
from milepost.progress.protocol import LaneGrant
from patience import until, within
from support import MakeMilepost, qualified

LOST = 20
NEW = 30
WRITTEN = Checkpoint(seconds=0.0, messages=1)

Seen = list[tuple[int, str]]


@pytest.fixture
async def server(database_url: str, schema: str) -> AsyncIterator[Lossy]:
    async with lossy(database_url, schema) as server:
        yield server


class Unaware:
    """Keeps a process from looking at its log until it is let go; says when it has tried to have a lane again."""

    def __init__(self, mp: Milepost) -> None:
        self.lanes: list[LaneGrant] = []
        """Those that it has got meanwhile."""
        self.tried = asyncio.Event()
        self.asked = asyncio.Event()
        """Somebody wants to look at the log."""
        self._open = asyncio.Event()
        sample, progress = mp.log.horizon.sample, mp.runtime().services.progress
        take = progress.take

        async def wait_and_sample() -> None:
            self.asked.set()
            await self._open.wait()
            await sample()

        async def try_to_take(*args: Any, **options: Any) -> list[LaneGrant]:
            try:
                taken = await take(*args, **options)
                self.lanes += taken
                return taken
            finally:
                self.tried.set()

        mp.log.horizon.sample = wait_and_sample  # type: ignore[method-assign]
        progress.take = try_to_take  # type: ignore[method-assign]

    def let_go(self) -> None:
        self._open.set()


class Story:
    """Messages that are kept, lost and new, and what was handled of them."""

    def __init__(
        self, mp: Milepost, make_mp: MakeMilepost, server: Lossy, *, held: int = LOST - 1, is_lost: bool = True
    ) -> None:
        self.seen: Seen = []
        self.free = asyncio.Event()
        self._mp = mp
        self._make_mp = make_mp
        self._server = server
        self._held = held
        self._is_lost = is_lost
        """Whether the lane is lost with its connection."""
        self._lost: list[int] = []

    async def handle(self, message: Message[Any]) -> None:
        """Notes a message; one of the lost ones takes until it is let go."""
        self.seen.append((message.position, message.type))
        if message.type == "lost" and message.data == self._held and not self.free.is_set():
            await self.free.wait()

    async def run(self) -> None:
        """Three messages are kept, twenty are lost in a crash, and thirty come before the process knows of it."""
        mp = self._mp
        for number in range(3):
            await mp.append("order-1", NewMessage("kept", number))
        await until(lambda: len(self.seen) == 3, 60)
        await until_stored(mp)
        await self._server.flush()
        self._lost = [(await mp.append("order-1", NewMessage("lost", number))).position for number in range(LOST)]
        await until(lambda: (self._lost[self._held], "lost") in self.seen, 60)
        unaware = Unaware(mp)
        await self._server.crash()
        await until_available(mp)
        self.free.set()
        async with within(60, lambda: self.seen):
            await unaware.asked.wait()
            if self._is_lost:
                await unaware.tried.wait()
        async with self._make_mp() as another:
            new = [await another.append("order-2", NewMessage("new", number)) for number in range(NEW)]
        assert new[0].position <= self._lost[0]
        for _ in range(50):
            # Whoever has got a lane has the time to do harm with it.
            await mp.log.database.execute("select 1", {})
        unaware.let_go()
        wanted = {(each.position, "new") for each in new}
        await until(lambda: wanted <= set(self.seen), 60)
        assert [seen for seen in self.seen if seen in wanted] == sorted(wanted)


async def until_stored(mp: Milepost) -> None:
    """Waits until what was appended is stored as handled."""
    async with asyncio.timeout(60):
        while (await mp.manage("lines").info()).lag.positions:
            await asyncio.sleep(0.01)


class TestHandlers:
    @pytest.fixture(params=["log", "other database", "memory"])
    def kept(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        """Each way to keep progress."""
        if request.param == "other database":
            return {"progress": str(request.getfixturevalue("second_url"))}
        return {"progress": MemoryProgress()} if request.param == "memory" else {}

    async def test_new_messages_at_the_places_of_lost_ones_are_handled(
        self, make_mp: MakeMilepost, server: Lossy, kept: dict[str, Any]
    ) -> None:
        """Progress elsewhere would know of a message that was handled and lost: there the first one is held."""
        held = 0 if isinstance(kept.get("progress"), str) else LOST - 1
        async with make_mp(**kept) as mp:
            story = Story(mp, make_mp, server, held=held, is_lost="progress" not in kept or not held)

            @mp.subscription("lines", category="order", lanes=1, concurrency=1, checkpoint=WRITTEN)
            async def handle(message: Message[Any]) -> None:
                await story.handle(message)

            async with mp.running():
                await story.run()

    @pytest.mark.parametrize("start", ["beginning", "now"])
    async def test_a_subscription_that_is_lost_is_declared_again(
        self, mp: Milepost, make_mp: MakeMilepost, server: Lossy, start: str
    ) -> None:
        """Its number is nobody else's: another one that is made meanwhile is not taken for it."""
        await mp.append("order-1", NewMessage("kept"))
        await server.flush()
        seen: Seen = []

        @mp.subscription("lines", category="order", start=start, checkpoint=WRITTEN)
        async def handle(message: Message[Any]) -> None:
            seen.append((message.position, message.type))

        async with mp.running():
            lost = (await mp.append("order-1", NewMessage("lost"))).position
            await until(lambda: (lost, "lost") in seen, 60)
            await server.crash()
            await until_available(mp)
            async with make_mp() as another:
                await another.create_subscription("others", category="order", start="now")
                new = [await another.append("order-2", NewMessage("new")) for _ in range(NEW)]
            wanted = {(each.position, "new") for each in new}
            await until(lambda: wanted <= set(seen), 60)
            await until_stored(mp)
        assert ((1, "kept") in seen) is (start == "beginning")
        assert (await mp.manage("others").info()).lag.positions == NEW

    @pytest.mark.parametrize("kept", ["log", "memory"], indirect=True)
    async def test_one_that_began_at_messages_that_are_lost_begins_at_what_survived(
        self, make_mp: MakeMilepost, server: Lossy, kept: dict[str, Any]
    ) -> None:
        """It began now, and now was lost, together with it if that is kept with the log."""
        async with make_mp() as other:
            for _ in range(3):
                await other.append("order-1", NewMessage("kept"))
            await server.flush()
            for _ in range(LOST):
                await other.append("order-1", NewMessage("lost"))
        seen: Seen = []
        mp = make_mp(**kept)

        @mp.subscription("lines", category="order", start="now", lanes=1, checkpoint=WRITTEN)
        async def handle(message: Message[Any]) -> None:
            seen.append((message.position, message.type))

        async with mp:
            if not kept:
                # Its worker has to find that out; the other one begins to work only after the crash.
                async with mp.running():
                    await mp.append("order-1", NewMessage("lost"))
                    await until(lambda: len(seen) == 1, 60)
                    await self.handles_what_is_new(mp, make_mp, server, seen)
            else:
                await mp.create_declared()
                await self.handles_what_is_new(mp, make_mp, server, seen)

    async def handles_what_is_new(self, mp: Milepost, make_mp: MakeMilepost, server: Lossy, seen: Seen) -> None:
        await server.crash()
        await until_available(mp)
        async with make_mp() as another:
            new = [await another.append("order-2", NewMessage("new")) for _ in range(NEW)]
        wanted = {(each.position, "new") for each in new}
        assert min(wanted)[0] == 4
        if seen:
            await until(lambda: wanted <= set(seen), 60)
            return
        with suppress(Unavailable):
            # The connection may be one of before.
            await mp.log.horizon.sample()
        async with mp.running():
            await until(lambda: wanted <= set(seen), 60)

    @pytest.mark.shard("faults")
    async def test_one_that_is_declared_again_waits_for_what_runs_of_it(
        self, make_mp: MakeMilepost, server: Lossy
    ) -> None:
        """It has another number then, and its key would run twice at a time."""
        started: list[int] = []
        running: list[int] = []
        most = 0
        free, looks = asyncio.Event(), 0
        async with make_mp() as other:
            for _ in range(2):
                await other.append("order-1", NewMessage("kept"))
        await server.flush()
        mp = make_mp()

        @mp.subscription("lines", category="order", lanes=1, concurrency=1, checkpoint=WRITTEN)
        async def handle(message: Message[Any]) -> None:
            nonlocal most
            started.append(message.position)
            running.append(message.position)
            most = max(most, len(running))
            if len(started) == 1:
                await free.wait()
            running.remove(message.position)

        async with mp, mp.running():
            await until(lambda: len(started) == 1, 60)
            await server.crash()
            progress = mp.runtime().services.progress
            look = progress.look

            async def count(*args: Any, **options: Any) -> Any:
                nonlocal looks
                found = await look(*args, **options)
                looks += 1
                return found

            progress.look = count  # type: ignore[method-assign]
            await until(lambda: looks > 5, 60)
            free.set()
            await until(lambda: started[-1] == 2, 60)
        assert most == 1

    @pytest.mark.shard("faults")
    async def test_a_definition_that_is_lost_is_declared_again(self, make_mp: MakeMilepost, server: Lossy) -> None:
        """What the older one does not select is handled."""
        seen: Seen = []
        old = make_mp()
        old.subscription("lines", category="order", types=["kept"], start="now")(_ignore)
        async with old, old.running():
            await server.flush()
        async with make_mp() as mp:

            @mp.subscription("lines", category="order", start="now", checkpoint=WRITTEN)
            async def handle(message: Message[Any]) -> None:
                seen.append((message.position, message.type))

            async with mp.running():
                lost = (await mp.append("order-1", NewMessage("lost"))).position
                await until(lambda: (lost, "lost") in seen, 60)
                await server.crash()
                await until_available(mp)
                new = [await mp.append("order-2", NewMessage("new")) for _ in range(NEW)]
                wanted = {(each.position, "new") for each in new}
                await until(lambda: wanted <= set(seen), 60)

    async def test_exactly_once(self, mp: Milepost, make_mp: MakeMilepost, server: Lossy) -> None:
        await mp.log.database.execute(qualified("create table {}.effects (position bigint, type text)", mp), {})
        story = Story(mp, make_mp, server)

        @mp.subscription("lines", category="order", lanes=1)
        async def handle(message: Message[Any], tx: Transaction) -> None:
            statement = qualified("insert into {}.effects values (%s, %s)", mp)
            await tx.execute(statement, (message.position, message.type))
            await story.handle(message)

        async with mp.running():
            await story.run()
            await until_stored(mp)
        rows = await mp.log.database.execute(qualified("select * from {}.effects order by 1", mp), {})
        assert rows == [(number + 1, "kept" if number < 3 else "new") for number in range(3 + NEW)]


async def _ignore(message: Message[Any]) -> None: ...


class TestConsumers:
    async def test_new_messages_at_the_places_of_lost_ones_are_delivered(
        self, mp: Milepost, make_mp: MakeMilepost, server: Lossy
    ) -> None:
        await mp.create_subscription("lines", category="order", checkpoint=WRITTEN)
        story = Story(mp, make_mp, server)
        async with taking(mp, story.handle):
            await story.run()


@asynccontextmanager
async def taking(mp: Milepost, handle: Callable[[Message[Any]], Awaitable[None]]) -> AsyncIterator[None]:
    """A consumer that takes one message after the other."""
    async with AsyncExitStack() as stack:
        consumer = await stack.enter_async_context(mp.consumer("lines", capacity=1))

        async def take() -> None:
            async for delivery in consumer:
                async with delivery as message:
                    await handle(message)

        async with asyncio.TaskGroup() as group:
            task = group.create_task(take())
            yield
            task.cancel()


async def test_pulled(mp: Milepost, make_mp: MakeMilepost, server: Lossy) -> None:
    """What was read ahead for a pull, and the rows that became of it, are of one life."""
    await mp.create_subscription("lines", category="order", tracking="all")
    await mp.append("order-1", NewMessage("kept"))
    await mp.settle(ack=await mp.pull("lines"))
    await server.flush()
    for number in range(LOST):
        await mp.append("order-1", NewMessage("lost", number))
    await mp.settle(ack=await mp.pull("lines", limit=LOST // 2))
    await server.crash()
    await until_available(mp)
    async with make_mp() as another:
        new = [(await another.append("order-2", NewMessage("new"))).position for _ in range(NEW)]
    pulled: list[tuple[int, str]] = []
    async with within(60, lambda: pulled):
        while len(pulled) < NEW:
            # A connection that the crash has ended may be found out only now.
            with suppress(Unavailable):
                tasks = await mp.pull("lines", limit=7)
                pulled += [(task.position, task.message.type) for task in tasks]
                await mp.settle(ack=tasks)
    assert pulled == [(position, "new") for position in new]
