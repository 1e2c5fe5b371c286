"""A subscription of a program while a worker runs."""

import asyncio
import logging

from milepost.engine.builder import Builder
from milepost.engine.runner import Runner
from milepost.engine.subscription import Subscription
from milepost.log.database import end
from milepost.progress.protocol import Opened

logger = logging.getLogger("milepost.engine")


class Served:
    """How a subscription is stored, as far as the worker knows, and the runner that was built for that."""

    def __init__(
        self, subscription: Subscription, opened: Opened, builder: Builder, tasks: asyncio.TaskGroup
    ) -> None:
        self.subscription = subscription
        self.opened = opened
        self.declared_at = 0.0
        """When it was last declared, by the loop's clock."""
        self._builder = builder
        self._group = tasks
        self._build()
        telling = self.runner.settling.telling
        if telling is not None:
            telling.opened(opened)

    @property
    def name(self) -> str:
        return self.subscription.name

    @property
    def wanted(self) -> int | None:
        """How many lanes are to be shared out among the workers that can run it; None: this one cannot now."""
        if self.is_outdated or self.opened.pending in ("wait", "ready") or self._is_misfit:
            return None
        return 0 if self.opened.rests else self.opened.lanes

    @property
    def is_outdated(self) -> bool:
        """Whether a newer program runs it."""
        return self.opened.newest > self.opened.number

    @property
    def is_in_force(self) -> bool:
        """Whether it runs as this program declares it."""
        return not self.is_outdated and self.opened.pending is None

    @property
    def _is_misfit(self) -> bool:
        """Whether the runner was built for something else."""
        return self._shape != _shape(self.opened)

    async def learn(self, opened: Opened) -> None:
        """It is stored like this now."""
        before, self.opened = self.opened, opened
        if opened.status != before.status:
            logger.info("%s: it is %s", self.name, opened.status)
        if opened.newest > opened.number and before.newest <= before.number:
            logger.warning("%s: waits for a program with a newer definition to end", self.name)
        if self._is_misfit and not self.runner.lanes:
            await self._rebuild()
        self.runner.concurrency = self._builder.concurrency_of(self.subscription, opened)
        self.runner.stops_at(opened.barrier_at)
        if opened.acted != before.acted:
            self.runner.poke()

    def _build(self) -> None:
        self.runner: Runner = self._builder.build(self.subscription, self.opened)
        self._shape = _shape(self.opened)
        works = (self.runner.reading.run(), self.runner.writing.run())
        self._tasks = [self._group.create_task(work) for work in works]

    async def _rebuild(self) -> None:
        """Nothing of it runs: what runs it is made anew, for what is in force now."""
        tally, telling = self.runner.settling.tally, self.runner.settling.telling
        await self.stop()
        self._build()
        self.runner.settling.tally, self.runner.settling.telling = tally, telling

    async def stop(self) -> None:
        """Ends what reads and writes for it."""
        for task in self._tasks:
            await end(task)


def _shape(opened: Opened) -> tuple[object, ...]:
    """What a runner is built for."""
    return opened.orders, opened.lanes, opened.since
