"""What a worker costs that has nothing to do."""

import asyncio
from typing import Any

import pytest

from conftest import absent
from engine.faults.talk import idle, looks, statements
from milepost import Message, Milepost, NewMessage, Park
from milepost.log.postgres.feed import UNNOTIFIED_POLL_SECONDS
from patience import until, within
from servers import PGBOUNCER, Server, pooler_before
from support import qualified, rows_by_state

LOOKS = 1


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


async def asked_between_looks(server: Server) -> list[str]:
    """What a worker asks for from one look at its subscriptions to a later one."""
    before = len(looks(statements(server)))
    await until(lambda: len(looks(statements(server))) > before + LOOKS, 60)
    asked = statements(server)
    places = looks(asked)
    return asked[places[before] : places[before + LOOKS]]


@pytest.mark.parametrize("subscriptions", [1, pytest.param(20, marks=pytest.mark.shard("faults"))])
async def test_an_idle_worker_asks_for_little(talkative: Server, subscriptions: int) -> None:
    """Also when it has handled and parked messages."""
    mp = Milepost(talkative.url(), schema=f"idle_{subscriptions}")
    for number in range(subscriptions):
        declare(mp, f"s{number}")
    async with mp, mp.running():
        for number in range(20):
            await mp.append(f"order-{number}", NewMessage("odd" if number == 7 else "even"))
        await until_parked(mp, subscriptions)
        asked = await asked_between_looks(talkative)
    assert len(asked) < idle(asked), "\n".join(asked)


@pytest.mark.shard("faults")
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
            await until(lambda: mp.log.feed._unheard == UNNOTIFIED_POLL_SECONDS[1], 60)
            asked = await asked_between_looks(talkative)
            await mp.append("order-2", NewMessage("odd"))
            await until_parked(mp, 10)
    assert len(asked) < idle(asked), "\n".join(asked)
