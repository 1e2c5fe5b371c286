"""What workers tell of what they do: rate, what is in flight, the last error."""

import asyncio
from typing import Any

import pytest

from milepost import MemoryProgress, Message, Milepost, NewMessage
from milepost.engine import sharing
from milepost.engine.info import SubscriptionInfo
from support import MakeMilepost, qualified


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "BALANCE", 0.05)


async def info_when(mp: Milepost, condition: Any) -> SubscriptionInfo:
    async with asyncio.timeout(30):
        while not condition(info := await mp.manage("orders").info()):
            await asyncio.sleep(0.02)
    return info


async def test_what_is_in_flight_and_what_takes_long(mp: Milepost, make_mp: MakeMilepost) -> None:
    slow, end = make_mp(), asyncio.Event()

    @slow.subscription("orders", category="order", lanes=2)
    async def handle(message: Message[Any]) -> None:
        await end.wait()

    async with slow.running(grace=5):
        await mp.append("order-1", NewMessage("placed"))
        await mp.append("order-2", NewMessage("placed"))
        info = await info_when(mp, lambda info: info.in_flight == 2)
        assert (info.rate, info.last_error) == (0, None)
        query = qualified("select slow from {}.reports where jsonb_array_length(slow) = 2", mp)
        async with asyncio.timeout(30):
            while not (rows := await mp.log.database.execute(query, {})):
                await asyncio.sleep(0.02)
        assert [each["position"] for each in rows[0][0]] == [1, 2]
        end.set()
        info = await info_when(mp, lambda info: info.in_flight == 0)
    assert (await mp.manage("orders").info()).rate == 0


@pytest.mark.parametrize("progress", [None, MemoryProgress])
async def test_rate_and_last_error(make_mp: MakeMilepost, progress: Any) -> None:
    program = make_mp(progress=progress() if progress else None)

    @program.subscription("orders", category="order", lanes=2)
    async def handle(message: Message[Any]) -> None:
        if message.position == 30:
            raise ValueError("not this one")

    async with program, program.running(grace=5):
        for n in range(40):
            await program.append(f"order-{n}", NewMessage("placed"))
        info = await info_when(program, lambda info: info.rate > 0 and info.last_error is not None)
        assert info.last_error == "ValueError: not this one"
        assert info.last_error_at is not None
