"""Three nodes behind one list of addresses, ended and started again under load; consumers in other processes."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import milepost
from client.cluster import Cluster, cluster
from contract.both import order
from contract.test_consuming import until
from milepost import Milepost, Retry
from milepost.client.client import Client
from patience import within

pytestmark = [pytest.mark.timeout(300), pytest.mark.shard("processes")]

CAPACITY = 20
"""Of each program's consumer."""
CHECKPOINT = 200
"""Messages that a node may have handed out after what it wrote last: those of 0.2 s, at this load far fewer."""


@pytest.fixture
def lease() -> int:
    """Seconds: where nobody is killed, nobody is to be taken for dead because the machine is busy."""
    return 30


@pytest.fixture
async def nodes(
    mp: Milepost, database_url: str, schema: str, tmp_path: Path, lease: int
) -> AsyncIterator[Cluster]:
    """Three nodes, and three programs with consumers."""
    await mp.create_subscription("shipping", category="order", lease=lease, retry=Retry(delay=0, attempts=50))
    with cluster(database_url, schema, tmp_path) as made:
        made.consume(3)
        await until(lambda: _ready(made))
        yield made


async def _ready(made: Cluster) -> bool:
    return all(program.is_ready for program in made.programs)


class Load:
    """Appends through the same list of nodes, until it is to stop."""

    def __init__(self, client: Client) -> None:
        self.count = 0
        self._client = client
        self._stop = False
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while not self._stop:
            await self._client.append(f"order-{self.count % 7}", order(self.count))
            self.count += 1
            await asyncio.sleep(0.005)

    async def until(self, count: int) -> None:
        async with within(60, lambda: f"{self.count} of {count}"):
            while self.count < count:
                if self._task.done():
                    self._task.result()
                await asyncio.sleep(0.01)

    async def stop(self) -> int:
        self._stop = True
        await self._task
        return self.count


async def _all_done(mp: Milepost, made: Cluster, count: int) -> bool:
    done = made.said("done")
    return await mp.head() == count and len(done) == count


async def test_nodes_that_are_stopped_one_after_the_other(mp: Milepost, nodes: Cluster) -> None:
    """A rolling restart repeats nothing and loses nothing."""
    async with milepost.connect(nodes.addresses, patience=60) as client:
        load = Load(client)
        for node in nodes.nodes:
            await load.until(load.count + 60)
            assert await asyncio.to_thread(node.end, signal.SIGTERM) == 0
            await load.until(load.count + 60)
            await asyncio.to_thread(node.start)
        count = await load.stop()
        assert await mp.head() == count
        await until(lambda: _all_done(mp, nodes, count))
        for program in nodes.programs:
            await asyncio.to_thread(program.stop)
    taken, done, lost = nodes.said("took"), nodes.said("done"), nodes.said("lost")
    assert set(done.values()) == {1}
    repeated = {position for position, times in taken.items() if times > 1}
    assert repeated <= set(lost)
    await mp.manage("shipping").caught_up(count, timeout=60)


@pytest.mark.parametrize("lease", [2])
async def test_nodes_that_are_killed_one_after_the_other(mp: Milepost, nodes: Cluster) -> None:
    """Nothing is lost; what was open, or not yet written, when a node was killed may come again."""
    async with milepost.connect(nodes.addresses, patience=60) as client:
        load = Load(client)
        for node in nodes.nodes:
            await load.until(load.count + 60)
            await asyncio.to_thread(node.end, signal.SIGKILL)
            await load.until(load.count + 60)
            await asyncio.to_thread(node.start)
        count = await load.stop()
        assert await mp.head() == count
        await until(lambda: _all_done(mp, nodes, count))
        assert [message.data["n"] async for message in client.read()] == list(range(count))
        await until(lambda: _all_listed(client, nodes))
    taken = nodes.said("took")
    repeated = sum(times - 1 for times in taken.values())
    assert repeated <= 3 * (3 * CAPACITY + CHECKPOINT)
    await until(lambda: _settled(mp))


async def _all_listed(client: Client, made: Cluster) -> bool:
    return {node.address for node in await client.nodes()} == set(made.addresses)


async def _settled(mp: Milepost) -> bool:
    info = await mp.manage("shipping").info()
    return info.lag.positions == 0 and not info.retrying and not info.parked
