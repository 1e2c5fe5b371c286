"""What may have ended a process runs alone in its process: beside no handler, and no delivery of a consumer."""

import asyncio
from typing import Any

import pytest

from engine.consuming.taking import PATIENCE, is_dry, take
from milepost import Message, Milepost, NewMessage
from support import qualified

SHORT = 0.5
"""Seconds in which what is wrongly let go would have run."""


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

    async def does_not_begin(self) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(self.begun.wait(), SHORT)


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
        async with mp.running():
            await handled.does_not_begin()
            await delivery.ack()
            await handled.begins()
            await mp.append("parcel-2", NewMessage("packed"))
            assert await is_dry(consumer)
            handled.may_end.set()
            [delivery] = await take(consumer, 1)
            await delivery.ack()


async def test_a_consumer_s_suspect_waits_for_handlers_and_they_wait_for_it(mp: Milepost) -> None:
    handled = Handled(mp)
    await mp.create_subscription("shipping", category="parcel")
    await mp.append("parcel-1", NewMessage("packed"))
    async with mp.consumer("shipping") as consumer:
        for delivery in await take(consumer, 1):
            await delivery.ack()
    await mp.append("order-1", NewMessage("placed"))
    async with mp.running():
        await handled.begins()
        await suspect(mp, "shipping", 1)
        async with mp.consumer("shipping") as consumer:
            assert await is_dry(consumer)
            handled.may_end.set()
            [delivery] = await take(consumer, 1)
            handled.begun.clear()
            await mp.append("order-2", NewMessage("placed"))
            await handled.does_not_begin()
            await delivery.ack()
            await handled.begins()
