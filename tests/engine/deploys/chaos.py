"""One deploy after the other, of versions that differ at random, with processes that are killed in between."""

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from engine.deploys.deploy import Deploy, Process, deploying
from engine.deploys.load import Load
from engine.deploys.record import by_stream, disorders, overlaps, repeated
from engine.deploys.stored import Stored
from engine.deploys.version import Version
from engine.faults.chance import seeded
from milepost import Milepost

MOST = 4
"""Processes at a time."""
PAUSE = 0.8
"""Seconds between two events, about."""
FILTERS = [None, "n >= 0", "n > -1"]
"""All select everything, in other words."""


class Chaos:
    """What happens to a deployment. Whatever is declared, messages of a stream stay in order."""

    def __init__(
        self, mp: Milepost, deploy: Deploy, chance: random.Random, first: Version, orders: list[str]
    ) -> None:
        self._mp = mp
        self._deploy = deploy
        self._chance = chance
        self._orders = orders
        self._version = first
        self._versions = [first]
        self._running: list[Process] = []
        self.killed: set[int] = set()

    async def go_on_for(self, seconds: float) -> None:
        """One event after the other; then a last version has everything to itself."""
        events: list[Callable[[], Awaitable[None]]] = [
            *[self._deploy_new] * 4,
            *[self._roll_back, self._scale, self._kill, self._stop] * 2,
            self._pause,
        ]
        self._start()
        await self._deploy.until_handled(self._version)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(self._chance.random() * 2 * PAUSE)
            await self._chance.choice(events)()
            self._check_alive()
            if not self._running:
                self._start()
        await self._mp.manage("orders").resume()
        last = list(self._running)
        self._choose()
        self._start()
        for process in last:
            await self._leave(process)

    def _choose(self) -> None:
        """Another version."""
        chance = self._chance
        changes: dict[str, Any] = {
            "lanes": chance.choice([1, 2, 3, 4, 8]),
            "orders": chance.choice(self._orders),
            "where": chance.choice(FILTERS),
        }
        self._version = self._versions[0].but(f"v{len(self._versions) + 1}", **changes)
        self._versions.append(self._version)

    def _start(self) -> None:
        self._running.append(self._deploy.start(self._version))

    async def _deploy_new(self) -> None:
        """A rolling deploy: the new one comes, and some of the old ones go, in good order or not."""
        self._choose()
        await self._replace()

    async def _roll_back(self) -> None:
        self._version = self._chance.choice(self._versions)
        await self._replace()

    async def _replace(self) -> None:
        old = list(self._running)
        self._start()
        for process in old:
            await asyncio.sleep(self._chance.random() * PAUSE)
            if self._chance.random() < 0.3:
                self._end(process)
            elif self._chance.random() < 0.8:
                await self._leave(process)

    async def _scale(self) -> None:
        if len(self._running) < MOST:
            self._start()

    async def _kill(self) -> None:
        if self._running:
            self._end(self._chance.choice(self._running))

    async def _stop(self) -> None:
        if self._running:
            process = self._chance.choice(self._running)
            await self._leave(process)

    async def _pause(self) -> None:
        await self._mp.manage("orders").pause()
        await asyncio.sleep(self._chance.random() * PAUSE)
        await self._mp.manage("orders").resume()

    async def _leave(self, process: Process) -> None:
        """In good order, unless the signal comes before it can be heard."""
        self._running.remove(process)
        assert await process.stop() in (0, -signal.SIGTERM), process.said

    def _end(self, process: Process) -> None:
        self._running.remove(process)
        self.killed.add(process.pid)
        process.kill()

    def _check_alive(self) -> None:
        """Nothing ends by itself."""
        for process in self._running:
            assert process.is_alive, process.said


async def deploys_for(
    seconds: float, mp: Milepost, url: str, schema: str, folder: Path, *, exactly_once: bool = False
) -> None:
    """Deploys for so long, while messages come; at the end all were handled, in order."""
    stored = Stored(url, schema)
    await stored.ask('create table if not exists {0}.effects ("position" bigint, version text)')
    first = Version(label="v1", lease=2, exactly_once=exactly_once)
    # Without the program that has it nobody knows a function: what writes exactly once would stand still.
    orders = ["stream", "property"] if exactly_once else ["stream", "property", "function 1", "function 2"]
    with seeded() as chance, deploying(url, schema, folder) as deploy:
        chaos = Chaos(mp, deploy, chance, first, orders)
        load = Load(mp, keys_of_streams=True)
        async with load.going_on(pause=0.02):
            await chaos.go_on_for(seconds)
        await deploy.until_all(load.positions, seconds=90)
        assert disorders(deploy.record.handled(), by_stream) == []
        assert overlaps(deploy.record.lines(), by_stream, chaos.killed) == []
        if exactly_once:
            effects = [position for (position,) in await stored.ask('select "position" from {0}.effects')]
            assert repeated(effects) == []
            assert set(effects) == load.positions
