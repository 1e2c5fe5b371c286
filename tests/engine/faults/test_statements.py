"""How many statements a message costs: far fewer than one, unless its transaction is its own."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from engine.faults.talk import idle, statements
from milepost import Message, Milepost, NewMessage, Transaction
from servers import Server

pytestmark = pytest.mark.shard("large")

COUNT = 2000


class Handled:
    """Counts what handlers have done."""

    def __init__(self) -> None:
        self._count = 0
        self.all = asyncio.Event()

    def note(self, messages: Sequence[Message[Any]]) -> None:
        self._count += len(messages)
        if self._count >= COUNT:
            self.all.set()


# Handlers that wait: what ends at once is over before anything could be written too often.


def one_by_one(mp: Milepost, handled: Handled) -> None:
    @mp.subscription("orders", category="order")
    async def handle(message: Message[Any]) -> None:
        await asyncio.sleep(0.005)
        handled.note([message])


def in_batches(mp: Milepost, handled: Handled) -> None:
    @mp.subscription("orders", category="order", batch=10)
    async def handle(messages: list[Message[Any]]) -> None:
        await asyncio.sleep(0.05)
        handled.note(messages)


def exactly_once_in_batches(mp: Milepost, handled: Handled) -> None:
    @mp.subscription("orders", category="order", batch=10)
    async def handle(messages: list[Message[Any]], tx: Transaction) -> None:
        handled.note(messages)


Declare = Callable[[Milepost, Handled], None]


async def asked_for(server: Server, schema: str, streams: int, declare: Declare) -> list[str]:
    """What a worker asks for from its start until it has handled all of a backlog."""
    mp, handled = Milepost(server.url(), schema=schema, concurrency=10), Handled()
    declare(mp, handled)
    async with mp:
        messages = [NewMessage("placed")] * (COUNT // streams)
        await mp.append_many({f"order-{number}": messages for number in range(streams)})
        before = len(statements(server))
        async with mp.running():
            await asyncio.wait_for(handled.all.wait(), 60)
            return [statement.split("LOG:  ")[1] for statement in statements(server)[before:]]


@pytest.mark.parametrize(
    ("declare", "most"), [(one_by_one, 0.06), (in_batches, 0.06), (exactly_once_in_batches, 1.2)]
)
async def test_a_backlog_costs_few_statements_a_message(talkative: Server, declare: Declare, most: float) -> None:
    """0.024, 0.025 and 0.55 as this was written, with those of the start."""
    asked = await asked_for(talkative, declare.__name__, 200, declare)
    assert len(asked) < most * COUNT + idle(asked), Counter(asked).most_common(10)


async def test_statements_do_not_grow_with_the_streams(talkative: Server) -> None:
    few, many = [await asked_for(talkative, f"of_{count}", count, one_by_one) for count in (10, COUNT)]
    growth = (len(few) / 2 - idle(few), len(many), len(few) * 2 + idle(many))
    assert growth == tuple(sorted(growth)), (Counter(few).most_common(10), Counter(many).most_common(10))
