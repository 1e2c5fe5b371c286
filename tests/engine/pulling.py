"""What tests of pulling share: a small queue, its rows, and the clock."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from milepost import Milepost, NewMessage
from milepost.engine.operate.deliveries import DeliveryInfo
from milepost.engine.operate.manage import ManagedSubscription
from milepost.engine.pull import puller
from milepost.engine.pull.claims import PulledDeliveries, PulledDelivery
from milepost.engine.pull.settle import PullSettleResult
from support import qualified

PATIENCE = 30.0
"""Seconds that a pull waits which is not to end by itself."""


class Jobs:
    """A subscription to pull from, as one process sees it."""

    def __init__(self, mp: Milepost, name: str = "emails") -> None:
        self.mp = mp
        self.name = name

    @classmethod
    async def create(cls, mp: Milepost, name: str = "emails", **options: Any) -> "Jobs":
        await mp.create_subscription(name, **{"category": "job", "tracking": "all", **options})
        return cls(mp, name)

    async def append(self, count: int = 1, stream: str = "job-1") -> list[int]:
        """So many messages in one stream; their positions."""
        messages = [NewMessage("sent", number) for number in range(count)]
        appended = await self.mp.append(stream, messages)
        return list(range(appended.position - count + 1, appended.position + 1))

    async def spread(self, count: int) -> list[int]:
        """So many messages, each in a stream of its own."""
        return [(await self.append(stream=f"job-{number}"))[0] for number in range(count)]

    async def pull(self, limit: int = 100, **options: Any) -> PulledDeliveries:
        return await self.mp.pull(self.name, limit=limit, **options)

    async def settle(self, **outcomes: Any) -> PullSettleResult:
        return await self.mp.settle(**outcomes)

    async def drain(self) -> list[int]:
        """Acks everything that can be had; the positions."""
        done: list[int] = []
        while tasks := await self.pull():
            await self.settle(ack=tasks)
            done += positions(tasks)
        return done

    @property
    def managed(self) -> ManagedSubscription:
        return self.mp.manage(self.name)

    async def rows(self, **choice: Any) -> list[DeliveryInfo]:
        return [delivery async for delivery in self.managed.deliveries(**choice)]

    async def states(self) -> dict[int, str]:
        return {row.position: str(row.state) for row in await self.rows()}

    async def execute(self, text: str, **parameters: Any) -> Sequence[Any]:
        """A statement where progress is, with `{}` for the schema."""
        return await self.mp.services.transactions.execute(qualified(text, self.mp), parameters)

    async def heads(self) -> dict[str | None, int]:
        """The position of each key's head."""
        rows = await self.execute('select key, "position" from {}.deliveries where head')
        keys = [key for key, _ in rows if key is not None]
        assert len(keys) == len(set(keys))
        return dict(rows)


def positions(tasks: Sequence[PulledDelivery]) -> list[int]:
    return [task.position for task in tasks]


class Clock:
    """The clock of a schema, which a test moves."""

    def __init__(self, mp: Milepost) -> None:
        self._mp = mp
        self._offset = 0.0

    async def advance(self, seconds: float) -> None:
        self._offset += seconds
        await self._mp.services.transactions.execute(
            qualified(
                "create or replace function {}.clock() returns timestamptz language sql volatile parallel safe "
                f"as $$ select clock_timestamp() + interval '{self._offset} s' $$",
                self._mp,
            ),
            {},
        )


class Waiting:
    """A pull that waits."""

    def __init__(self, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self._asleep = asyncio.Event()
        sleep = puller.PullWait.sleep

        async def noted(wait: puller.PullWait, seconds: float) -> None:
            self._asleep.set()
            await sleep(wait, seconds)

        monkeypatch.setattr(puller.PullWait, "sleep", noted)
        self._task = asyncio.create_task(jobs.pull(wait=PATIENCE, **options))

    async def asleep(self) -> None:
        """Until it sleeps for good: its process listens."""
        await self._asleep.wait()

    async def cancel(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def got(self) -> list[int]:
        async with asyncio.timeout(PATIENCE - 10):
            return positions(await self._task)
