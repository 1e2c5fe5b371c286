"""Writing a lane's progress: whoever ends in the middle of it writes nothing after that."""

import asyncio
from typing import Any

import pytest

from milepost import Message, Milepost, NewMessage, Retry, Transaction
from milepost.engine.lanes import balancer
from milepost.engine.lanes.message_loader import MessageLoader


@pytest.mark.parametrize("exactly_once", [False, True])
async def test_one_that_is_cancelled_before_the_lane_knows_what_was_written(
    mp: Milepost, monkeypatch: pytest.MonkeyPatch, *, exactly_once: bool
) -> None:
    """The right to write is that of the old revision, which is gone: what the lane would write is outdated."""
    monkeypatch.setattr(balancer, "SHUTDOWN_SECONDS", 0.1)
    entered = asyncio.Event()

    async def never(self: MessageLoader, answer: Any, **life: Any) -> Any:
        entered.set()
        await asyncio.Event().wait()

    async def fail(message: Message[Any]) -> None:
        raise RuntimeError("fails")

    async def write(message: Message[Any], tx: Transaction) -> None:
        await tx.execute("select 1")

    mp.subscription("orders", lanes=1, retry=Retry(delay=100))(write if exactly_once else fail)

    async with mp.program().running(grace=0.05) as worker:
        runners = worker.runners.values()
        while not (runners and all(runner.lanes for runner in runners)):
            await asyncio.sleep(0.01)
        [owned] = [owned for runner in runners for owned in runner.lanes.values()]
        await worker.idle()
        before = owned.held
        monkeypatch.setattr(MessageLoader, "answer", never)
        await mp.append("order-1", NewMessage("placed"))
        async with asyncio.timeout(60):
            await entered.wait()
        assert owned.held == before
