"""A subscription to look at and to operate, from any process."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import datetime
from typing import Any

from milepost.engine.declare.declaration import Start
from milepost.engine.observe.statistics import SubscriptionStatistics
from milepost.engine.operate.caught_up import (
    AppendedOrPosition,
    CaughtUpWait,
    StreamProgress,
    StreamProgressFinder,
)
from milepost.engine.operate.control import Plan, SubscriptionControl
from milepost.engine.operate.create import update_subscription
from milepost.engine.operate.deliveries import (
    DeliveryInfo,
    OnBatch,
    Positions,
    States,
    SubscriptionDeliveries,
    checked_limit,
    choice_to_decide,
    choice_to_list,
)
from milepost.engine.operate.info import SubscriptionInfo, SubscriptionOverview, subscription_statistics
from milepost.engine.runtime import Runtime, find_subscription
from milepost.progress.deliveries import Decided, Decision


class ManagedSubscription:
    """What `mp.manage` gives. Nothing is asked before one of its methods is called."""

    def __init__(self, group: str, name: str, runtime: Callable[[], Runtime]) -> None:
        self.group = group
        self.name = name
        self._runtime = runtime

    async def info(self) -> SubscriptionInfo:
        """How it stands now; raises `UnknownSubscription` if there is none."""
        return await SubscriptionOverview(self._runtime()).one(self.group, self.name)

    async def statistics(self) -> SubscriptionStatistics:
        """What the consumers of one that was created do, as its owner told within the last seconds.

        Counts and latencies begin when the process that owns it got its first consumer.
        """
        return await subscription_statistics(self._runtime(), self.group, self.name)

    async def progress(self, stream: str) -> StreamProgress:
        """How far it is with one stream: the version handled, the version known, lagging or not.

        What was handled is stored at the subscription's cadence, 0.2 s by default.
        """
        return await StreamProgressFinder(self._runtime(), self.group, self.name).of(stream)

    async def caught_up(self, written: AppendedOrPosition, *, timeout: float | None = 2) -> None:
        """Returns when everything of an append has been handled: done, skipped, or not for this subscription.

        Args:
            written: What `append` or `append_many` returned, or the position of a message.
            timeout: Seconds after which `NotHandledYet` says where it is instead. Defaults to 2; None: never.

        Where waiting is of no use it does not wait: `NotHandled` says that the message is parked, or waits behind
        one that is, or that the subscription is paused; `NotHandledYet` also that it is tried again, but later.
        """
        await CaughtUpWait(self._runtime(), self.group, self.name).wait(written, timeout)

    async def deliveries(
        self,
        *,
        state: States | None = None,
        key: str | None = None,
        reason: str | None = None,
        after: int = 0,
        up_to: int | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[DeliveryInfo, None]:
        """The messages that need attention of their own, in order of position, in pages.

        Args:
            state: "parked", "retrying", "waiting", "unrouted", "running" or "skipped", or several of them.
                Defaults to all.
            key: Only what is kept in order by this key: the stream, unless the subscription says otherwise.
            reason: Only those whose reason has this text in it, in upper or lower case.
            after: Only higher positions.
            up_to: Only positions up to this one.
            limit: At most so many.
        """
        pages = self.delivery_pages(state=state, key=key, reason=reason, after=after, up_to=up_to, limit=limit)
        async with aclosing(pages):
            async for page in pages:
                for delivery in page:
                    yield delivery

    async def delivery_pages(
        self,
        *,
        state: States | None = None,
        key: str | None = None,
        reason: str | None = None,
        after: int = 0,
        up_to: int | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[list[DeliveryInfo], None]:
        """What `deliveries` gives, in the lists it is loaded in."""
        choice, most = (
            choice_to_list(state=state, key=key, reason=reason, after=after, up_to=up_to),
            checked_limit(limit),
        )
        async with aclosing(self._deliveries().pages(choice, most)) as pages:
            async for page in pages:
                yield page

    async def count_deliveries(
        self,
        *,
        state: States | None = None,
        key: str | None = None,
        reason: str | None = None,
        after: int = 0,
        up_to: int | None = None,
    ) -> int:
        """How many `deliveries` would give."""
        choice = choice_to_list(state=state, key=key, reason=reason, after=after, up_to=up_to)
        return await self._deliveries().count(choice)

    async def retry(
        self,
        positions: Positions | None = None,
        *,
        all: bool = False,
        after: int = 0,
        up_to: int | None = None,
        limit: int | None = None,
        state: States | None = None,
        key: str | None = None,
        reason: str | None = None,
        on_batch: OnBatch | None = None,
    ) -> Decided:
        """Has messages tried now, and counted anew: those at these positions, or all, or all up to a position.

        The lowest come first, a thousand in a transaction, so that it can be interrupted at any point. Where
        another person decides at the same moment, each message is moved by one of both and refused to the other.

        Args:
            positions: Of parked or retrying messages; one or several.
            all: All parked ones.
            after: With `all` and `up_to`: only higher positions.
            up_to: All parked ones up to this position.
            limit: At most so many.
            state: "parked", "retrying" or both; others are left alone. Defaults to "parked", or with
                `positions` to both.
            key: With `all` and `up_to`: only what is kept in order by this key.
            reason: With `all` and `up_to`: only those whose reason has this text in it.
            on_batch: Called after each transaction with how many messages that is so far.
        """
        chosen = choice_to_decide(
            Decision.RETRY, positions, all=all, after=after, up_to=up_to, state=state, key=key, reason=reason
        )
        most = checked_limit(limit)
        return await self._deliveries().decide(Decision.RETRY, chosen, limit=most, on_batch=on_batch)

    async def skip(
        self,
        positions: Positions | None = None,
        *,
        all: bool = False,
        after: int = 0,
        up_to: int | None = None,
        limit: int | None = None,
        state: States | None = None,
        key: str | None = None,
        reason: str | None = None,
        on_batch: OnBatch | None = None,
    ) -> Decided:
        """Passes messages over for good; what waits behind them goes on. Its arguments are those of `retry`.

        It takes parked, retrying, waiting and unrouted messages; `all` and `up_to` mean the parked ones unless
        `state` says otherwise. A message that is running is left alone.
        """
        chosen = choice_to_decide(
            Decision.SKIP, positions, all=all, after=after, up_to=up_to, state=state, key=key, reason=reason
        )
        most = checked_limit(limit)
        return await self._deliveries().decide(Decision.SKIP, chosen, limit=most, on_batch=on_batch)

    def _deliveries(self) -> SubscriptionDeliveries:
        return SubscriptionDeliveries(self._runtime(), self.group, self.name)

    async def pause(self, *, timeout: float = 60, force: bool = False) -> None:
        """Nothing of it runs when this returns, in no process, until it is resumed; also after restarts.

        Raises `NotConfirmed` if a worker takes longer than `timeout` seconds: it is paused all the same. With
        `force` nobody is waited for: what does not end within half a second is taken back from whoever has it.
        That is no attempt, and what still comes of it counts for nothing. Coroutines are cancelled; a thread
        cannot be, and goes on until it returns.
        """
        await (await self._control()).pause(timeout, force=force)

    async def resume(self) -> None:
        """It goes on where it was."""
        await (await self._control()).resume()

    async def move(self, to: Start, *, timeout: float = 60, force: bool = False) -> int:
        """Goes on elsewhere: at the "beginning", "now", at a time, or after a position.

        Messages between are handled again, or never. Deliveries above that place are forgotten; returns how many.
        It waits for `timeout` seconds until what runs has ended, while all others go on, and raises `NotConfirmed`
        if something still does: then nothing was done. With `force` that is taken back, as by `pause`.
        """
        return await (await self._control()).move(to, timeout, force=force)

    async def plan_move(self, to: Start) -> Plan:
        """What `move` would do; nothing is done."""
        return await (await self._control()).plan_move(to)

    async def replay(
        self, start: Start, end: datetime | int | None = None, *, timeout: float = 60, force: bool = False
    ) -> int:
        """Repeats what was handled after `start` and up to `end`, then goes on where it was.

        Handlers are told by `Context.replay`. Without `end` it is all that was handled. Returns how many positions
        that are. Deliveries between are forgotten: their messages come too, not marked, since they had not been
        handled. It waits as `move` does.
        """
        return await (await self._control()).replay(start, end, timeout, force=force)

    async def plan_replay(self, start: Start, end: datetime | int | None = None) -> Plan:
        """What `replay` would do; nothing is done."""
        return await (await self._control()).plan_replay(start, end)

    async def update(self, /, **changes: Any) -> None:
        """Changes settings of one that was created for consumers, without dropping any.

        One that is declared in code is only limited: `concurrency` is how many messages a process handles at once;
        None is what the code says. Anything else raises `DeclaredInCode`.
        """
        runtime = self._runtime()
        if (
            runtime.services.database is not None
            and not (await find_subscription(runtime, self.group, self.name)).in_code
        ):
            await update_subscription(runtime, self.group, self.name, changes)
        else:
            await (await self._control()).update(changes)

    async def delete(self, *, timeout: float = 60, force: bool = False) -> None:
        """Forgets it, its progress and its deliveries. A program that declares it makes it anew when it starts.

        It waits as `move` does.
        """
        await (await self._control()).delete(timeout, force=force)

    async def _control(self) -> SubscriptionControl:
        runtime = self._runtime()
        return SubscriptionControl(runtime, await SubscriptionOverview(runtime).standing(self.group, self.name))

    def __repr__(self) -> str:
        return f"ManagedSubscription({f'{self.group}/{self.name}'!r})"
