"""Lanes that read no further because `max_waiting` is reached: who is told, and how they go on."""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from milepost import MemoryProgress, Message, Milepost, NewMessage, Park
from milepost.engine.lanes import balancer, checkpoint_writer
from milepost.engine.operate.info import SubscriptionInfo
from support import MakeMilepost

LIMIT = 3


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balancer, "BALANCE_SECONDS", 0.05)


class Orders:
    """A subscription that parks the orders that are named, and of which so many others may wait."""

    def __init__(self, mp: Milepost, *parked: str, lanes: int = 1, window: int = 10) -> None:
        self.mp = mp
        self.parked = set(parked)
        self.handled: list[str] = []

        @mp.subscription("orders", category="order", lanes=lanes, window=window, max_waiting=LIMIT)
        async def handle(message: Message[Any]) -> None:
            if message.stream in self.parked:
                raise Park("not now")
            self.handled.append(message.stream)

    async def append(self, stream: str, count: int = 1) -> None:
        for _ in range(count):
            await self.mp.append(stream, NewMessage("placed"))

    async def waiting(self) -> list[str]:
        deliveries = self.mp.manage("orders").deliveries(state="waiting")
        return [delivery.message.stream async for delivery in deliveries if delivery.message is not None]

    async def info(self) -> SubscriptionInfo:
        return await self.mp.manage("orders").info()

    async def when(self, holds: Callable[[SubscriptionInfo], bool]) -> SubscriptionInfo:
        async with asyncio.timeout(60):
            while not holds(info := await self.info()):
                await asyncio.sleep(0.02)
        return info


@pytest.mark.parametrize("progress", [None, MemoryProgress])
async def test_run_until_idle_ends_and_names_the_key(make_mp: MakeMilepost, progress: Any) -> None:
    """What is left waits for a person; other keys that are in the window are handled."""
    async with make_mp(progress=progress() if progress else None) as mp:
        orders = Orders(mp, "order-1")
        await orders.append("order-1", 6)
        await orders.append("order-2", 2)
        async with asyncio.timeout(30):
            report = (await mp.run_until_idle())["orders"]
        assert (report.parked, orders.handled) == (1, ["order-2"] * 2)
        assert report.stopped == (
            "3 messages wait behind others (max_waiting=3); the next one is of key 'order-1'"
        )


async def test_run_until_idle_ends_with_a_full_window_and_goes_on_when_a_person_has_decided(mp: Milepost) -> None:
    orders = Orders(mp, "order-1", window=5)
    await orders.append("order-1", 20)
    await orders.append("order-2")
    async with asyncio.timeout(30):
        await mp.run_until_idle()
        assert orders.handled == []
        orders.parked.clear()
        await mp.manage("orders").retry(all=True)
        report = (await mp.run_until_idle())["orders"]
    assert (report.stopped, sorted(orders.handled)) == (None, ["order-1"] * 20 + ["order-2"])


async def test_run_until_idle_ends_where_another_process_has_the_lane_that_is_stopped(
    make_mp: MakeMilepost,
) -> None:
    one, two = Orders(make_mp(), "order-1", lanes=2), Orders(make_mp(), "order-1", lanes=2)
    async with one.mp, two.mp:
        await one.append("order-1", 20)
        async with one.mp.running(), asyncio.timeout(60):
            info = await one.when(lambda info: info.status == "stopped")
            [lane] = [lane for lane in info.lanes if lane.stopped]
            await two.mp.run_until_idle()
        assert lane.owner is not None


async def test_the_status_the_log_and_a_trace_name_the_key(mp: Milepost, caplog: pytest.LogCaptureFixture) -> None:
    orders = Orders(mp, "order-1", lanes=2)
    await orders.append("order-1", 6)
    async with mp.running():
        info = await orders.when(lambda info: info.status == "stopped")
        assert info.stopped == (
            "1 of 2 lanes: 3 messages wait behind others (max_waiting=3); the next one is of key 'order-1'"
        )
        [number] = [lane.number for lane in info.lanes if lane.stopped is not None]
        [traced] = [each for each in (await mp.trace("order-1")).traced if each.message.version == 6]
        assert traced.state == "not reached"
        assert "its lane reads no further: 3 messages wait behind others" in str(traced)
        assert "key 'order-1'" in str(traced)
    [said] = [record for record in caplog.records if "reads no further" in record.message]
    assert said.levelno == logging.ERROR
    assert said.message == (
        f"orders: lane {number} reads no further: "
        "3 messages wait behind others (max_waiting=3); the next one is of key 'order-1'"
    )
    assert (said.subscription, said.lane) == ("orders", number)  # type: ignore[attr-defined]
    # That the process has let the lane go does not mean that it goes on.
    assert not [record for record in caplog.records if "reads on" in record.message]


async def test_when_it_goes_on_the_status_and_the_log_say_so(
    mp: Milepost, caplog: pytest.LogCaptureFixture
) -> None:
    orders = Orders(mp, "order-1")
    await orders.append("order-1", 6)
    async with mp.running():
        await orders.when(lambda info: info.status == "stopped")
        orders.parked.clear()
        await mp.manage("orders").retry(all=True)
        info = await orders.when(lambda info: info.status == "running" and len(orders.handled) == 6)
    assert (info.stopped, {lane.stopped for lane in info.lanes}) == (None, {None})
    assert "orders: reads on: there are fewer such messages than the limit allows" in caplog.messages


async def test_a_message_that_comes_later_stops_it_too(mp: Milepost) -> None:
    """The limit is reached exactly, so nothing is left to write when one more comes."""
    orders = Orders(mp, "order-1")
    await orders.append("order-1", 1 + LIMIT)
    async with mp.running():
        info = await orders.when(lambda info: info.waiting == LIMIT)
        assert info.status == "running"
        await orders.append("order-1")
        await orders.when(lambda info: info.status == "stopped")


async def test_a_lane_goes_on_when_rows_of_another_are_gone(
    make_mp: MakeMilepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if that is another process's lane, and nothing of its own changes."""
    monkeypatch.setattr(checkpoint_writer, "IDLE_WRITE_SECONDS", 0.05)
    programs = [Orders(make_mp(), "order-1", "order-2", lanes=2) for _ in range(2)]
    one, two = programs
    async with one.mp, two.mp, one.mp.running(), two.mp.running():
        await one.when(lambda info: len(info.owners) == 2)
        await one.append("order-2")
        await one.append("order-1", 1 + LIMIT)
        await one.when(lambda info: info.parked == 2 and info.waiting == LIMIT)
        # With this one, its lane learns how many there are.
        await one.append("order-2")
        await one.when(lambda info: info.status == "stopped" or info.waiting == LIMIT + 1)
        await one.append("order-2", 20)
        await one.when(lambda info: info.status == "stopped")
        for each in programs:
            each.parked.discard("order-1")
        await one.mp.manage("orders").retry([2])
        # Those of the one order wait no longer, so those of the other may.
        async with asyncio.timeout(60):
            while (await one.waiting()).count("order-2") < LIMIT:
                await asyncio.sleep(0.02)
        assert one.handled + two.handled == ["order-1"] * (1 + LIMIT)


async def test_run_until_idle_goes_on_with_a_lane_when_rows_of_another_are_gone(mp: Milepost) -> None:
    orders = Orders(mp, "order-1", "order-2", lanes=2)
    await orders.append("order-2")
    await orders.append("order-1", 1 + LIMIT)
    async with asyncio.timeout(30):
        await mp.run_until_idle()
        await orders.append("order-2", 8)
        assert (await mp.run_until_idle())["orders"].stopped is not None
        orders.parked.discard("order-1")
        await mp.manage("orders").retry([2])
        await mp.run_until_idle()
    assert (orders.handled, (await orders.waiting()).count("order-2")) == (["order-1"] * (1 + LIMIT), LIMIT)


async def test_a_report_with_a_key_that_json_escapes(mp: Milepost) -> None:
    stream = 'order-"\\é\n'
    orders = Orders(mp, stream)
    await orders.append(stream, 6)
    async with mp.running():
        info = await orders.when(lambda info: info.status == "stopped")
    assert info.stopped is not None
    assert repr(stream) in info.stopped
    assert json.dumps(info.stopped)


async def test_what_is_pulled_names_the_key_too(mp: Milepost) -> None:
    await mp.create_subscription("jobs", category="job", tracking="all", ordered_by="stream", max_waiting=LIMIT)
    await mp.append("job-1", [NewMessage("do") for _ in range(20)])
    await mp.pull("jobs", limit=5)
    await mp.pull("jobs", limit=5)
    info = await mp.manage("jobs").info()
    assert info.status == "stopped"
    assert info.stopped is not None
    assert info.stopped.endswith("(max_waiting=3); the next one is of key 'job-1'")
