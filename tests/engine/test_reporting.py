"""What workers tell of what they do: rate, what is in flight, the last error."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from time import monotonic
from typing import Any

import pytest

from milepost import MemoryProgress, Message, Milepost, NewMessage, Park, Retry, RetryLater, Skip, Transaction
from milepost.engine.lanes import balancer
from milepost.engine.operate.info import SubscriptionInfo
from support import MakeMilepost, qualified


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balancer, "BALANCE_SECONDS", 0.05)


async def info_when(mp: Milepost, condition: Any) -> SubscriptionInfo:
    async with asyncio.timeout(60):
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
        query = qualified("select flights from {}.reports where jsonb_array_length(flights) = 2", mp)
        async with asyncio.timeout(60):
            while not (rows := await mp.log.database.execute(query, {})):
                await asyncio.sleep(0.02)
        assert sorted(each["position"] for each in rows[0][0]) == [1, 2]
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

    async with program, program.running(grace=5), asyncio.timeout(60):
        for n in count():
            # A rate is of a moment: there is one for as long as messages come.
            await program.append(f"order-{n % 40}", NewMessage("placed"))
            info = await program.manage("orders").info()
            if info.rate > 0 and info.last_error is not None:
                break
        assert info.last_error == "ValueError: not this one"
        assert info.last_error_at is not None


async def test_attempts_stay_counted_when_the_runner_is_built_anew(mp: Milepost) -> None:
    @mp.subscription("orders", category="order", retry=Retry(attempts=1))
    async def handle(message: Message[Any]) -> None:
        raise ValueError("not this one")

    async with mp, mp.program().running(grace=5) as worker:
        await mp.append("order-1", NewMessage("placed"))
        await worker.idle()
        await mp.manage("orders").pause()
        [host] = worker._balancer.served.values()
        before = host.runner
        await host.taken_back()
        assert host.runner is not before
        await mp.manage("orders").resume()
        await mp.append("order-2", NewMessage("placed"))
        await info_when(mp, lambda info: info.attempts == 2)


@pytest.mark.parametrize("word", ["a\0b", "a\ud800b"])
async def test_an_error_that_cannot_be_stored_is_told_without_what_cannot(
    make_mp: MakeMilepost, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    # What is logged goes to the process that runs the tests, which does not bear it.
    caplog.set_level(logging.CRITICAL, "milepost")
    program = make_mp()

    @program.subscription("orders", category="order", lanes=1)
    async def handle(message: Message[Any]) -> None:
        raise ValueError(word)

    async with program, program.running(grace=5):
        await program.append("order-1", NewMessage("placed"))
        info = await info_when(program, lambda info: info.last_error is not None)
        assert str(info.last_error).startswith("ValueError: a")


TOOK = 0.002


class Measured:
    """How long calls took by their own account. Whoever calls them measures no less, on any machine."""

    def __init__(self) -> None:
        self.calls: list[float] = []

    @contextmanager
    def call(self) -> Iterator[None]:
        begun = monotonic()
        yield
        self.calls.append(monotonic() - begun)

    async def take_time(self) -> None:
        with self.call():
            await asyncio.sleep(TOOK)

    def is_within(self, seconds: float) -> bool:
        """Whether so many seconds, which are told to the microsecond, have room for all calls."""
        return seconds + 1e-6 >= sum(self.calls) > 0


def awaited(program: Milepost, measured: Measured) -> None:
    @program.subscription("orders", category="order")
    async def handle(message: Message[Any]) -> None:
        await measured.take_time()
        if message.position == 3:
            raise Skip("not this one")


def plain(program: Milepost, measured: Measured) -> None:
    @program.subscription("orders", category="order")
    def handle(message: Message[Any]) -> None:
        with measured.call():
            time.sleep(TOOK)
        if message.position == 3:
            raise Park("not this one")


def batched(program: Milepost, measured: Measured) -> None:
    @program.subscription("orders", category="order", batch=1)
    async def handle(messages: list[Message[Any]]) -> None:
        await measured.take_time()
        if messages[0].position == 3:
            raise RetryLater(3600)


def exactly_once(program: Milepost, measured: Measured) -> None:
    @program.subscription("orders", category="order", lanes=8, retry=Retry(delay=3600))
    async def handle(message: Message[Any], tx: Transaction) -> None:
        await measured.take_time()
        if message.position == 3:
            raise ValueError("not this one")


@pytest.mark.shard("variants", fast=["awaited", "batched", "exactly_once"])
@pytest.mark.parametrize("declare", [awaited, plain, batched, exactly_once])
async def test_how_long_handlers_take(
    make_mp: MakeMilepost, declare: Callable[[Milepost, Measured], None]
) -> None:
    """Whatever came of the attempt."""
    program, measured = make_mp(), Measured()
    declare(program, measured)
    async with program, program.running(grace=5):
        for n in range(5):
            await program.append(f"order-{n}", NewMessage("placed"))
        info = await info_when(program, lambda info: info.attempts >= 5)
    assert info.attempts == 5
    assert len(measured.calls) == 5
    assert measured.is_within(info.handling_seconds)


async def test_the_time_of_a_batch_counts_once(make_mp: MakeMilepost) -> None:
    program, measured = make_mp(), Measured()

    @program.subscription("orders", category="order", lanes=1, batch=100)
    async def handle(messages: list[Message[Any]]) -> None:
        await measured.take_time()

    async with program:
        for n in range(50):
            await program.append(f"order-{n}", NewMessage("placed"))
        async with program.running(grace=5):
            info = await info_when(program, lambda info: info.attempts >= 50)
    assert info.attempts == 50
    assert len(measured.calls) < 50
    assert measured.is_within(info.handling_seconds)


async def test_how_long_consumers_have_messages(make_mp: MakeMilepost) -> None:
    program, measured = make_mp(), Measured()
    async with program:
        await program.create_subscription("orders", category="order")
        for n in range(5):
            await program.append(f"order-{n}", NewMessage("placed"))
        async with program.consumer("orders") as consumer:
            for _ in range(5):
                async with await anext(consumer):
                    await measured.take_time()
            info = await info_when(program, lambda info: info.attempts >= 5)
    assert info.attempts == 5
    assert measured.is_within(info.handling_seconds)


async def test_what_workers_have_measured_is_kept_when_one_begins_anew(make_mp: MakeMilepost) -> None:
    program = make_mp()
    awaited(program, Measured())
    async with program:
        for n in range(2):
            await program.append(f"order-{n}", NewMessage("placed"))
            async with program.running(grace=5):
                await info_when(program, lambda info, n=n: info.attempts == n + 1)
