"""What may have ended a process runs alone in its process: beside no handler, and no delivery of a consumer."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from engine.consuming.taking import PATIENCE, take, until
from milepost import Message, Milepost, NewMessage
from milepost.engine.consumers.consumer import Consumer
from milepost.engine.consumers.delivery import Delivery
from milepost.engine.handlers.worker import Worker
from milepost.engine.lanes.held_lane import HeldLane
from support import qualified


async def can_run(lanes: Callable[[], Iterable[HeldLane | None]]) -> None:
    """Until a lane has something that could be handed out if that were permitted, and whoever may has done so."""
    await until(lambda: any(owned.lane.suspects or owned.lane.has_next for owned in lanes() if owned is not None))
    for _ in range(20):
        await asyncio.sleep(0)


async def suspect(mp: Milepost, subscription: str, position: int, key: str | None = None) -> None:
    """A message that has ended a process, and is to be tried again now."""
    statement = qualified(
        "insert into {0}.deliveries "
        "(subscription, position, lane, attempts, total, size, revision, since, due, state, key, suspicion) "
        "select id, %(position)s, 0, 1, 1, 1, 1, {0}.clock(), {0}.clock(), 'retrying', %(key)s, 'certain' "
        "from {0}.subscriptions where name = %(subscription)s",
        mp,
    )
    given = {"position": position, "key": key, "subscription": subscription}
    await mp.log.database.execute(statement, given)


class Handled:
    """A handler that says when it has begun, and ends when it may."""

    def __init__(self, mp: Milepost) -> None:
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()

        @mp.subscription("invoices", category="order", lanes=1)
        async def handle(message: Message[Any]) -> None:
            self.begun.set()
            await self.may_end.wait()

    async def begins(self) -> None:
        await asyncio.wait_for(self.begun.wait(), PATIENCE)

    async def is_kept_waiting(self, worker: Worker) -> None:
        """It has a message, and does not get it."""
        await can_run(lambda: [owned for runner in worker.runners.values() for owned in runner.lanes.values()])
        assert not self.begun.is_set()


class Next:
    """The next delivery of a consumer, for which it may have to wait."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._task = asyncio.create_task(take(consumer, 1))

    async def is_kept_waiting(self) -> None:
        """There is a message, and the consumer does not get it."""
        dispatcher = self._consumer._dispatcher
        assert dispatcher is not None
        await can_run(lambda: [dispatcher.owned])
        assert not self._task.done()

    async def had(self) -> list[Delivery]:
        return await self._task


async def test_a_handler_s_suspect_waits_for_what_consumers_have_and_they_wait_for_it(mp: Milepost) -> None:
    handled = Handled(mp)
    handled.may_end.set()
    await mp.create_subscription("shipping", category="parcel")
    await mp.append("order-1", NewMessage("placed"))
    await mp.run_until_idle()
    handled.begun.clear()
    handled.may_end.clear()
    await mp.append("parcel-1", NewMessage("packed"))
    async with mp.consumer("shipping") as consumer:
        [delivery] = await take(consumer, 1)
        await suspect(mp, "invoices", 1, "order-1")
        async with mp.program().running(grace=PATIENCE) as worker:
            await handled.is_kept_waiting(worker)
            await delivery.ack()
            await handled.begins()
            delivery_to_come = Next(consumer)
            await mp.append("parcel-2", NewMessage("packed"))
            await delivery_to_come.is_kept_waiting()
            handled.may_end.set()
            [delivery] = await delivery_to_come.had()
            await delivery.ack()


async def test_a_consumer_s_suspect_waits_for_handlers_and_they_wait_for_it(mp: Milepost) -> None:
    handled = Handled(mp)
    await mp.create_subscription("shipping", category="parcel")
    await mp.append("parcel-1", NewMessage("packed"))
    async with mp.consumer("shipping") as consumer:
        for delivery in await take(consumer, 1):
            await delivery.ack()
    await mp.append("order-1", NewMessage("placed"))
    async with mp.program().running(grace=PATIENCE) as worker:
        await handled.begins()
        await suspect(mp, "shipping", 1)
        async with mp.consumer("shipping") as consumer:
            delivery_to_come = Next(consumer)
            await delivery_to_come.is_kept_waiting()
            handled.may_end.set()
            [delivery] = await delivery_to_come.had()
            handled.begun.clear()
            await mp.append("order-2", NewMessage("placed"))
            await handled.is_kept_waiting(worker)
            await delivery.ack()
            await handled.begins()
