"""Worker processes that die at random moments, while handlers write in the transaction of their progress."""

import asyncio
import signal
import time
from pathlib import Path

from engine.faults import effects
from engine.faults.chance import seeded
from engine.faults.crew import crew
from engine.faults.load import Load
from engine.faults.watch import watching
from milepost import Milepost

WORKERS = 2
LEASE = 1.0


async def kill_for(seconds: float, mp: Milepost, url: str, schema: str, folder: Path) -> None:
    """Kills processes for so long; at the end every message has had its effect exactly once."""
    await effects.create(mp)
    with seeded() as chance, crew(url, schema, folder, effects={"lanes": 4, "lease": LEASE}) as workers:
        load = Load(mp, chance)
        async with watching(url, schema):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                while len(workers.alive) < WORKERS:
                    workers.start()
                await load.append(20)
                await asyncio.sleep(chance.random() * 0.05)
                if chance.random() < 0.1 and await effects.count(mp):
                    chance.choice(workers.alive).send_signal(signal.SIGKILL)
            workers.start()
            await effects.until_all(mp, load)
        assert await effects.read(mp) == load.once()
