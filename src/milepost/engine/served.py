"""A subscription of a program while a worker runs."""

import asyncio
import logging
from typing import Any

import msgspec

from milepost.dispatch import LaneState
from milepost.engine.builder import Builder
from milepost.engine.declaring import Declaring
from milepost.engine.journal import FieldLogger
from milepost.engine.runner import Runner
from milepost.engine.sharing import SOON
from milepost.engine.subscription import Subscription
from milepost.log.database import end
from milepost.log.message import Message
from milepost.progress.protocol import Held, Opened, Sign

DEFINITIONS = "milepost.engine.definitions"
"""The logger that says what changes of definitions, and what keeps it from changing."""
PATIENCE = 5.0
"""Seconds between two looks at whether a newer program has ended."""


class Served:
    """How a subscription is stored, as far as the worker knows, and the runner that was built for that."""

    keeps = False

    def __init__(
        self,
        subscription: Subscription,
        opened: Opened,
        builder: Builder,
        declaring: Declaring,
        sign: Sign,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.subscription = subscription
        self.opened = opened
        self._sign = sign
        self._said: str | None = None
        fields = {"subscription": subscription.name, "group": subscription.group}
        self._logger = FieldLogger(logging.getLogger(DEFINITIONS), fields)
        self._declared_at = 0.0
        self._builder = builder
        self._declaring = declaring
        self._group = tasks
        self._build()
        self._say(opened)
        if opened.status == "paused":
            subscription.journal.status("paused")

    @property
    def name(self) -> str:
        return self.subscription.name

    @property
    def keep_done(self) -> float | None:
        """For how many seconds rows are kept of what is done; None: not at all."""
        return self.subscription.declaration.keep_done

    @property
    def wanted(self) -> int | None:
        """How many lanes are to be shared out among the workers that can run it; None: this one cannot now."""
        if self._is_misfit or not self.opened.may_run:
            return None
        return 0 if self.opened.rests else self.opened.lanes

    @property
    def _is_misfit(self) -> bool:
        """Whether the runner was built for something else."""
        return self._shape != _shape(self.opened)

    async def learn(self, opened: Opened) -> None:
        """It is stored like this now; whatever keeps it from running as declared is looked at."""
        known = self.opened
        await self._adapt(msgspec.structs.replace(opened, pending=known.pending, changed=known.changed))
        if not self.opened.is_in_force:
            await self._declare_again()

    async def _declare_again(self) -> None:
        """Others run it, or it has to change its order first: it may be this worker's turn now."""
        now = asyncio.get_running_loop().time()
        if now < self._declared_at + (PATIENCE if self.opened.pending in (None, "refused") else SOON):
            return
        self._declared_at = now
        await self._adapt(await self._declaring.again(self.subscription, self._sign))
        if self.opened.is_in_force and not self.opened.changed:
            self._log(logging.INFO, "goes on")

    async def _adapt(self, opened: Opened) -> None:
        before, self.opened = self.opened, opened
        if opened.status != before.status:
            self.subscription.journal.status(opened.status)
            if self.runner.telling is not None:
                self.runner.telling.status(opened.status)
        if opened.barrier and opened.barrier != before.barrier and opened.is_in_force:
            self._log(logging.INFO, f"stands still: {opened.barrier}")
        self._say(opened)
        if self._is_misfit and not self.runner.lanes:
            await self._rebuild()
        self.runner.concurrency = self._builder.concurrency_of(self.subscription, opened)
        # Nothing more is read of lanes that are to be let go: they would leave where they were brought to.
        self.runner.yields = self.wanted is None
        self.runner.stops_at(opened.barrier_at if self.wanted else 0)
        if opened.acted != before.acted:
            self.runner.poke()

    def _say(self, opened: Opened) -> None:
        """Tells what changed, or what keeps it from changing, once."""
        is_news, self._said = opened.changed != self._said, opened.changed
        if is_news and opened.changed:
            self._log(_level(opened), opened.changed)
        telling = self.runner.telling
        if telling is not None and (opened.created or (is_news and opened.is_in_force)):
            telling.opened(opened)

    def _log(self, level: int, words: str) -> None:
        self._logger.log(level, "%s: %s", self.name, words)

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

    async def prepare(self, held: Held, state: LaneState[Message[Any]]) -> LaneState[Message[Any]]:
        """A lane was taken: there is nothing to do before it runs."""
        return state

    async def taken_back(self) -> Opened:
        """A crash of the server took it back, or its definition: it is declared again."""
        self._log(logging.WARNING, "a restart of the server took it back: it is declared again")
        self.opened = await self._declaring.again(self.subscription, self._sign)
        await self._rebuild()
        return self.opened

    async def deleted(self) -> None:
        """It is there no more."""
        self.subscription.journal.warning("it was deleted; it is made anew when its program starts again")
        if self.runner.telling is not None:
            self.runner.telling.stopped(self._builder.worker)
        await self.stop()

    async def stop(self) -> None:
        """Ends what reads and writes for it."""
        for task in self._tasks:
            await end(task)


def _level(opened: Opened) -> int:
    """How much somebody should care: it stands still, or here, or what is declared comes into force."""
    if opened.pending == "refused":
        return logging.ERROR
    return logging.WARNING if opened.is_outdated else logging.INFO


def _shape(opened: Opened) -> tuple[object, ...]:
    """What a runner is built for."""
    return opened.orders, opened.lanes, opened.since
