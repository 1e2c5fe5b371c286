"""`SystemExit` and `KeyboardInterrupt` end the program, whatever handler raises them."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from milepost import Message, Milepost, NewMessage, Retry, Transaction
from support import qualified

OPTIONS = {"category": "order", "ordered_by": None, "retry": Retry(attempts=2, delay=0), "lanes": 1}
PROGRAM = Path(__file__).with_name("ends.py")


class Quits:
    """Handlers of every shape that end the program at one message, and how often they were called for it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.calls = 0

    def handle(self, *messages: Message[Any]) -> None:
        if any(message.data == "last" for message in messages):
            self.calls += 1
            raise self.error


def on_the_loop(mp: Milepost, quits: Quits) -> None:
    @mp.subscription("orders", **OPTIONS)
    async def handle(message: Message[Any]) -> None:
        quits.handle(message)


def after_a_wait(mp: Milepost, quits: Quits) -> None:
    @mp.subscription("orders", **OPTIONS)
    async def handle(message: Message[Any]) -> None:
        await asyncio.sleep(0)
        quits.handle(message)


def in_a_batch(mp: Milepost, quits: Quits) -> None:
    @mp.subscription("orders", batch=1, **OPTIONS)
    async def handle(messages: list[Message[Any]]) -> None:
        quits.handle(*messages)


def in_a_thread(mp: Milepost, quits: Quits) -> None:
    @mp.subscription("orders", **OPTIONS)
    def handle(message: Message[Any]) -> None:
        quits.handle(message)


def in_a_thread_of_batches(mp: Milepost, quits: Quits) -> None:
    @mp.subscription("orders", batch=1, **OPTIONS)
    def handle(messages: list[Message[Any]]) -> None:
        quits.handle(*messages)


def in_a_transaction(mp: Milepost, quits: Quits) -> None:
    @mp.subscription("orders", **OPTIONS)
    async def handle(message: Message[Any], tx: Transaction) -> None:
        await tx.execute("select 1")
        quits.handle(message)


def in_a_transaction_of_batches(mp: Milepost, quits: Quits) -> None:
    @mp.subscription("orders", batch=1, **OPTIONS)
    async def handle(messages: list[Message[Any]], tx: Transaction) -> None:
        await tx.execute("select 1")
        quits.handle(*messages)


class Session:
    """What a provider gives."""


def in_a_provider(mp: Milepost, quits: Quits) -> None:
    @mp.provide
    async def session(message: Message) -> Session:  # type: ignore[type-arg]
        quits.handle(message)
        return Session()

    @mp.subscription("orders", **OPTIONS)
    def handle(message: Message[Any], session: Session) -> None: ...


@dataclass
class Placed:
    """What an upcast makes of the payloads of the tests."""

    name: str


def in_an_upcast(mp: Milepost, quits: Quits) -> None:
    upcast_that_quits(mp, quits)

    @mp.subscription("orders", **OPTIONS)
    async def handle(event: Placed) -> None: ...


def in_an_upcast_for_a_thread(mp: Milepost, quits: Quits) -> None:
    upcast_that_quits(mp, quits)

    @mp.subscription("orders", **OPTIONS)
    def handle(event: Placed) -> None: ...


def upcast_that_quits(mp: Milepost, quits: Quits) -> None:
    mp.message("placed", version=2)(Placed)

    @mp.upcast("placed", from_version=1)
    def named(data: str) -> dict[str, str]:
        if data == "last":
            quits.calls += 1
            raise quits.error
        return {"name": data}


SHAPES = [
    on_the_loop,
    after_a_wait,
    in_a_batch,
    in_a_thread,
    in_a_thread_of_batches,
    in_a_transaction,
    in_a_transaction_of_batches,
    in_a_provider,
    in_an_upcast,
    in_an_upcast_for_a_thread,
]
shapes = pytest.mark.parametrize("declare", SHAPES)
Declare = Callable[[Milepost, Quits], None]


async def fill(mp: Milepost) -> None:
    for data in ("first", "second", "last"):
        await mp.append(f"order-{data}", NewMessage("placed", data))


async def stored(mp: Milepost) -> list[tuple[Any, ...]]:
    sql = "select state, attempts, reason from {}.deliveries"
    return list(await mp.log.database.execute(qualified(sql, mp), {}))


async def owners(mp: Milepost) -> int:
    [(count,)] = await mp.log.database.execute(qualified("select count(owner) from {}.lanes", mp), {})
    return int(count)


@pytest.mark.shard("variants", fast=["in_a_batch", "in_a_transaction_of_batches", "in_an_upcast_for_a_thread"])
@shapes
async def test_a_system_exit_ends_the_program_and_is_a_failed_attempt(mp: Milepost, declare: Declare) -> None:
    quits = Quits(SystemExit(3))
    declare(mp, quits)
    await fill(mp)
    with pytest.raises(SystemExit) as raised:
        async with mp.running():
            await asyncio.Event().wait()
    assert raised.value.code == 3
    assert await stored(mp) == [("retrying", 1, "SystemExit: 3")]
    assert await owners(mp) == 0


@pytest.mark.shard("variants", fast=["on_the_loop", "in_a_thread_of_batches", "in_a_transaction"])
@shapes
async def test_a_message_that_ends_every_program_is_parked(mp: Milepost, declare: Declare) -> None:
    quits = Quits(SystemExit(3))
    declare(mp, quits)
    await fill(mp)
    for _ in range(2):
        with pytest.raises(SystemExit):
            async with mp.running():
                await asyncio.Event().wait()
    assert await stored(mp) == [("parked", 2, "SystemExit: 3")]
    await mp.run_until_idle()
    assert quits.calls == 2


@pytest.mark.shard("variants", fast=["after_a_wait", "in_a_thread", "in_a_provider"])
@shapes
async def test_a_keyboard_interrupt_ends_the_program_and_counts_nothing(mp: Milepost, declare: Declare) -> None:
    quits = Quits(KeyboardInterrupt())
    declare(mp, quits)
    await fill(mp)
    with pytest.raises(KeyboardInterrupt):
        async with mp.running():
            await asyncio.Event().wait()
    assert await stored(mp) == []
    assert await owners(mp) == 0
    quits.error = RuntimeError("at the first attempt")
    await mp.run_until_idle(errors="park")
    assert [row[:2] for row in await stored(mp)] == [("parked", 1)]


@pytest.mark.shard(
    "variants",
    fast=[
        "raise-on_the_loop",
        "raise-in_a_thread",
        "raise-in_a_batch",
        "raise-in_an_upcast",
        "park-in_a_transaction",
        "park-in_a_provider",
    ],
)
@shapes
@pytest.mark.parametrize("errors", ["raise", "park"])
async def test_running_until_idle_raises_it(mp: Milepost, declare: Declare, errors: Any) -> None:
    declare(mp, Quits(SystemExit(3)))
    await fill(mp)
    with pytest.raises(SystemExit):
        await mp.run_until_idle(errors=errors)
    assert [row[:2] for row in await stored(mp)] == [("parked" if errors == "park" else "retrying", 1)]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_blocking_programs_get_it_too(make_mp: Callable[..., Milepost], error: BaseException) -> None:
    mp = make_mp()
    in_a_thread(mp, Quits(error))
    with mp.sync:
        mp.sync.append("order-1", NewMessage("placed", "last"))
        with pytest.raises(type(error)):
            mp.sync.run_until_idle()
        # The loop goes on.
        assert mp.sync.head() == 1


async def test_the_status_is_that_of_the_system_exit(mp: Milepost, database_url: str, schema: str) -> None:
    """A process on its own, as it is in production."""
    await mp.append("order-1", NewMessage("placed"))
    arguments = [sys.executable, str(PROGRAM), database_url, schema]
    process = await asyncio.to_thread(subprocess.run, arguments, timeout=40, check=False, capture_output=True)
    assert process.returncode == 3, process.stderr
    assert b"a handler raised SystemExit: 3: the program ends" in process.stderr
    assert await stored(mp) == [("retrying", 1, "SystemExit: 3")]
    assert await owners(mp) == 0


async def test_others_that_run_are_given_back(mp: Milepost) -> None:
    """Those that wait in the same process are no failures."""
    waits = asyncio.Event()

    @mp.subscription("orders", **OPTIONS)
    async def handle(message: Message[Any]) -> None:
        if message.data == "last":
            await waits.wait()
            sys.exit("enough")
        waits.set()
        await asyncio.Event().wait()

    await mp.append("order-1", NewMessage("placed", "first"))
    await mp.append("order-2", NewMessage("placed", "last"))
    with pytest.raises(SystemExit):
        async with mp.running(grace=0):
            await asyncio.Event().wait()
    assert await stored(mp) == [("retrying", 1, "SystemExit: enough")]
