"""What a worker costs that has nothing to do."""

import asyncio
from typing import Any

import pytest

from conftest import absent
from engine.faults.talk import statements
from milepost import Message, Milepost, NewMessage, Park
from milepost.log.wakeups import PROBE_TIMEOUT
from patience import within
from servers import PGBOUNCER, Server, pooler_before
from support import qualified, rows_by_state

SECONDS = 3.0
MOST = 10.0
"""Statements a second."""


def declare(mp: Milepost, name: str) -> None:
    @mp.subscription(name, category="order")
    async def handle(message: Message[Any]) -> None:
        if message.type == "odd":
            raise Park("odd")


async def until_parked(mp: Milepost, count: int) -> None:
    statement = qualified("select count(*) from {}.deliveries where state = 'parked'", mp)
    async with within(30, lambda: rows_by_state(mp)):
        while list(await mp.log.database.execute(statement, {})) != [(count,)]:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("subscriptions", [1, 20])
async def test_an_idle_worker_asks_for_little(talkative: Server, subscriptions: int) -> None:
    """Also when it has handled and parked messages."""
    mp = Milepost(talkative.url(), schema=f"idle_{subscriptions}")
    for number in range(subscriptions):
        declare(mp, f"s{number}")
    async with mp, mp.running():
        for number in range(20):
            await mp.append(f"order-{number}", NewMessage("odd" if number == 7 else "even"))
        await until_parked(mp, subscriptions)
        await asyncio.sleep(1)
        before = len(statements(talkative))
        await asyncio.sleep(SECONDS)
        asked = statements(talkative)[before:]
    assert len(asked) < MOST * SECONDS, "\n".join(asked)


async def test_behind_a_pooler_too(talkative: Server) -> None:
    """Nobody says there that something is new: it looks, but not all the time."""
    if not PGBOUNCER.exists():
        absent("pgbouncer")
    with pooler_before(talkative) as pooler:
        mp = Milepost(pooler.url, schema="idle_pooler")
        for number in range(5):
            declare(mp, f"s{number}")
        async with mp, mp.running():
            await mp.append("order-1", NewMessage("odd"))
            await until_parked(mp, 5)
            # Until it is known that nothing arrives, and it looks as seldom as it ever does.
            await asyncio.sleep(PROBE_TIMEOUT + 3)
            before = len(statements(talkative))
            await asyncio.sleep(SECONDS)
            asked = statements(talkative)[before:]
            await mp.append("order-2", NewMessage("odd"))
            await until_parked(mp, 10)
    assert len(asked) < MOST * SECONDS, "\n".join(asked)
