"""All subscriptions with consumers in this process."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from weakref import WeakValueDictionary

from milepost.dispatch import Route
from milepost.engine.clock import Clock
from milepost.engine.consuming.attended import Attended
from milepost.engine.consuming.company import Companies
from milepost.engine.consuming.consumer import AnyClaim, Consumer
from milepost.engine.consuming.created import find
from milepost.engine.consuming.desk import Desk
from milepost.engine.consuming.endings import CLOSED
from milepost.engine.listeners import Listeners
from milepost.engine.place import Place
from milepost.errors import MilepostError

STORED = 2.0
"""Seconds to wait at most until what a consumer settled is stored: a lane that is given back is written last."""

Address = tuple[str, str]
"""Group and name."""


class Desks:
    """Finds the desk of a subscription, or opens it; ends it when its last consumer has gone."""

    def __init__(self, place: Callable[[], Place], listeners: Listeners) -> None:
        self._place = place
        self._listeners = listeners
        self._attended: dict[Address, Attended] = {}
        self._locks: WeakValueDictionary[Address, asyncio.Lock] = WeakValueDictionary()
        self._clock = Clock()
        self._companies = Companies(self._clock)
        self._ending: dict[asyncio.Task[None], Address] = {}

    def consumer(
        self,
        group: str,
        name: str,
        routes: Sequence[Route],
        *,
        called: str | None = None,
        lost: Callable[[Sequence[AnyClaim], str], None] | None = None,
        recalled: Callable[[], None] | None = None,
    ) -> Consumer:
        """A consumer that comes when its block begins, and goes when that ends.

        `called` is a name for people. `lost` is told of deliveries that are no longer its own, and why. `recalled`
        is called when what it has handed on is wanted back, as far as nobody has begun with it.
        """

        async def attend(consumer: Consumer) -> Desk:
            return await self._attend((group, name), consumer)

        async def left(consumer: Consumer) -> None:
            await self._left((group, name), consumer)

        return Consumer(attend, left, routes, name=called, lost=lost, recalled=recalled)

    def owns(self, group: str, name: str) -> bool:
        """Whether this process has the lane of a subscription."""
        attended = self._attended.get((group, name))
        return attended is not None and bool(attended.runner.lanes)

    async def _attend(self, address: Address, consumer: Consumer) -> Desk:
        async with self._lock(address):
            attended = self._attended.get(address)
            if attended is None or attended.is_over:
                await self._ended(address)
                attended = await self._open(address)
                self._attended[address] = attended
                attended.runner.join(consumer)
                try:
                    await attended.start()
                except BaseException:
                    attended.runner.leave(consumer)
                    self._end(address, attended)
                    raise
            else:
                attended.runner.join(consumer)
        return attended.runner

    def _lock(self, address: Address) -> asyncio.Lock:
        lock = self._locks.get(address)
        if lock is None:
            self._locks[address] = lock = asyncio.Lock()
        return lock

    async def _open(self, address: Address) -> Attended:
        group, name = address
        place = self._place()
        opened = await find(place, group, name)
        if opened.in_code:
            raise MilepostError(
                f"{group}/{name} has handlers in a program, and takes no consumers: create another subscription"
            )
        if opened.settings["tracking"] == "all":
            raise MilepostError(f'{group}/{name} is for pulling: take from it with mp.pull("{name}")')
        return Attended(
            group,
            name,
            opened,
            place,
            clock=self._clock,
            companies=self._companies,
            audience=self._listeners.audience(),
        )

    async def _left(self, address: Address, consumer: Consumer) -> None:
        """The last one ends it, so that another process can have the lane; others wait for what they settled."""
        async with self._lock(address):
            attended = self._attended.get(address)
            if attended is None or attended.runner is not consumer.desk:
                return
            if not attended.runner.consumers:
                del self._attended[address]
                await asyncio.shield(self._end(address, attended))
                return
        with suppress(TimeoutError):
            async with asyncio.timeout(STORED):
                await attended.runner.stored()

    def _end(self, address: Address, attended: Attended) -> asyncio.Task[None]:
        """Whoever waits for it may be cancelled: it comes to its end all the same."""
        task = asyncio.create_task(attended.stop())
        self._ending[task] = address
        task.add_done_callback(self._ending.pop)
        return task

    async def _ended(self, address: Address) -> None:
        """Waits for those before it: one that is still ending would let go of the lane of the next."""
        if (before := self._attended.pop(address, None)) is not None:
            self._end(address, before)
        if ending := [task for task, at in self._ending.items() if at == address]:
            await asyncio.wait(ending)

    async def close(self) -> None:
        """All consumers end."""
        attended, self._attended = self._attended, {}
        for address, each in attended.items():
            each.runner.end(CLOSED)
            self._end(address, each)
        if self._ending:
            await asyncio.wait(self._ending)
