"""Pulling and settling, by the library and over the network."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from contract.both import Both, order, orders
from milepost import InvalidMessage, Milepost, MilepostError, NewMessage, Retry, TooLarge, UnknownSubscription
from milepost.dispatch import State
from support import qualified


async def test_pulling_and_each_way_to_settle(both: Both) -> None:
    await both.create_subscription("emails", category="order", tracking="all", retry=Retry(delay=60))
    await orders(both, 6)
    tasks = await both.pull("emails", limit=5)
    assert [task.message.data["n"] for task in tasks] == [0, 1, 2, 3, 4]
    assert (tasks.more, tasks[0].attempt, tasks[0].replay, tasks[0].position) == (True, 1, False, 1)
    settled = await both.settle(
        ack=tasks[0], retry={tasks[1]: ValueError("no")}, park=[tasks[2]], skip=tasks[3].token, reason="because"
    )
    assert set(settled.moved) == {tasks[0], tasks[1], tasks[2], tasks[3].token}
    assert settled.refused == ()
    again = await both.settle(ack=[tasks[0], tasks[4]])
    assert (again.moved, again.refused) == ((tasks[4],), (tasks[0],))
    stored = {delivery.position: delivery async for delivery in both.manage("emails").deliveries()}
    assert {position: (each.state, each.reason) for position, each in stored.items()} == {
        2: (State.RETRYING, "ValueError: no"),
        3: (State.PARKED, "because"),
    }
    assert "ValueError: no" in stored[2].error


async def test_a_claim_that_has_expired(both: Both) -> None:
    await both.create_subscription("emails", tracking="all", retry=Retry(delay=0))
    await orders(both, 1)
    [first] = await both.pull("emails", timeout=0.05)
    async with asyncio.timeout(60):
        [second] = await both.pull("emails", wait=10)
    assert second.attempt == 2
    settled = await both.settle(ack=[first, second])
    assert (settled.moved, settled.refused) == ((second,), (first,))


async def test_a_settlement_with_an_id_is_made_once(both: Both) -> None:
    """Who repeats it because the answer was lost is told the same, though it is settled by then."""
    await both.create_subscription("emails", tracking="all", retry=Retry(delay=0))
    await orders(both, 3)
    late, *tasks = await both.pull("emails")
    await both.settle(ack=late)
    asked: dict[str, Any] = {"ack": [late, tasks[0]], "retry": [tasks[1]], "id": uuid4()}
    first = await both.settle(**asked)
    assert (first.moved, first.refused) == (tuple(tasks), (late,))
    assert await both.settle(**asked) == first
    [again] = await both.pull("emails")
    assert (again.position, again.attempt) == (3, 2)
    with pytest.raises(InvalidMessage, match="was given for other deliveries before") as raised:
        await both.settle(ack=again, id=asked["id"])
    assert raised.value.field == "id"
    assert (await both.settle(ack=again)).moved == (again,)


async def test_extending(both: Both) -> None:
    await both.create_subscription("emails", tracking="all")
    await orders(both, 1)
    tasks = await both.pull("emails", timeout=5)
    assert (await both.settle(extend=tasks, timeout=60)).moved == tuple(tasks)
    assert (await both.settle(ack=tasks)).moved == tuple(tasks)


async def test_waiting(both: Both, mp: Milepost) -> None:
    await both.create_subscription("emails", tracking="all")
    waiting = asyncio.create_task(both.pull("emails", wait=600))
    async with asyncio.timeout(60):
        # Whoever is about to wait says so first.
        while not await mp.log.database.execute(qualified("select until from {}.sleeps", mp), {}):
            await asyncio.sleep(0.01)
        await both.append("order-1", order(1))
        assert len(await waiting) == 1
    assert await both.pull("emails", wait=0.1) == ()


async def test_many_at_once(both: Both) -> None:
    await both.create_subscription("emails", tracking="all")
    for start in range(0, 2500, 500):
        await both.append("order-1", [order(n) for n in range(start, start + 500)])
    tasks = await both.pull("emails", limit=2200)
    assert [task.message.data["n"] for task in tasks] == list(range(2200))
    assert tasks.more
    assert len((await both.settle(ack=tasks)).moved) == 2200


async def test_in_another_group(both: Both) -> None:
    await both.create_subscription("mail/emails", tracking="all", category="letter")
    await both.append("letter-1", NewMessage("a"))
    assert len(await both.pull("mail/emails")) == 1
    with pytest.raises(UnknownSubscription) as raised:
        await both.pull("emails")
    assert raised.value.name == "default/emails"


async def test_what_is_refused(both: Both) -> None:
    await both.create_subscription("emails", tracking="all")
    await both.create_subscription("consumers")
    await orders(both, 1)
    [task] = await both.pull("emails")
    for options in ({"limit": 0}, {"limit": 10_001}, {"wait": -1}, {"wait": 4000}, {"timeout": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            await both.pull("emails", **options)
    with pytest.raises(ValueError, match="ack and park"):
        await both.settle(ack=task, park=task)
    for wrong in ("'; drop table messages; --", "a\0b", "5f3a4c1e-0d3b-4c56-9f0e-2a1b9c8d7e6f", 7):
        with pytest.raises(ValueError, match="id: a UUID is wanted"):
            await both.settle(ack=task, id=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await both.settle(ack=[7])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="after"):
        await both.settle(retry=task, after=-1)
    with pytest.raises(MilepostError, match="for consumers"):
        await both.pull("consumers")
    assert (await both.settle(ack=["nonsense"])).refused == ("nonsense",)
    assert len((await both.settle(ack=["nonsense"] * 10_000)).refused) == 10_000
    with pytest.raises(TooLarge, match="more than 10,000 deliveries at once"):
        await both.settle(ack=["nonsense"] * 6_000, park=["other"] * 4_001)
    assert await both.settle() == await both.settle(ack=[])
