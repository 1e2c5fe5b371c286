"""Each call of a handler has its own copy of the context variables."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import wraps
from typing import Any

import pytest

from milepost import Message, Milepost, NewMessage, Retry, Transaction
from milepost.engine.context_variables import call_in_copied_context
from milepost.engine.observe.events import Handled, HandledSeveral

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
seen: list[str] = []
COUNT = 12


def serve(number: int) -> None:
    """Note the tenant that a call finds, and leave another one behind."""
    seen.append(tenant.get())
    tenant.set(f"tenant {number}")


def at_once(mp: Milepost) -> None:
    @mp.subscription("all", category="order")
    async def handle(message: Message[Any]) -> None:
        serve(message.data)


def with_a_wait(mp: Milepost) -> None:
    @mp.subscription("all", category="order")
    async def handle(message: Message[Any]) -> None:
        await asyncio.sleep(0)
        serve(message.data)
        await asyncio.sleep(0)
        assert tenant.get() == f"tenant {message.data}"


def that_fail(mp: Milepost) -> None:
    @mp.subscription("all", category="order", retry=Retry(attempts=1), on_park="continue")
    async def handle(message: Message[Any]) -> None:
        await asyncio.sleep(0)
        serve(message.data)
        raise ValueError(message.data)


def in_batches(mp: Milepost) -> None:
    @mp.subscription("all", category="order", batch=2)
    async def handle(messages: list[Message[Any]]) -> None:
        serve(messages[0].data)
        await asyncio.sleep(0)


def in_transactions(mp: Milepost) -> None:
    @mp.subscription("all", category="order")
    async def handle(message: Message[Any], tx: Transaction) -> None:
        serve(message.data)
        await tx.execute("select 1")


def in_transactions_of_batches(mp: Milepost) -> None:
    @mp.subscription("all", category="order", batch=2)
    async def handle(messages: list[Message[Any]], tx: Transaction) -> None:
        serve(messages[0].data)
        await tx.execute("select 1")


def in_threads(mp: Milepost) -> None:
    @mp.subscription("all", category="order")
    def handle(message: Message[Any]) -> None:
        serve(message.data)


def in_threads_of_batches(mp: Milepost) -> None:
    @mp.subscription("all", category="order", batch=2)
    def handle(messages: list[Message[Any]]) -> None:
        serve(messages[0].data)


@dataclass
class Customer:
    tenant: str


def with_providers(mp: Milepost) -> None:
    @mp.provide
    async def customer(message: Message) -> AsyncIterator[Customer]:  # type: ignore[type-arg]
        await asyncio.sleep(0)
        serve(message.data)
        yield Customer(tenant.get())
        assert tenant.get() == f"handling {message.data}"

    @mp.subscription("all", category="order")
    async def handle(message: Message[Any], customer: Customer) -> None:
        assert tenant.get() == customer.tenant == f"tenant {message.data}"
        tenant.set(f"handling {message.data}")


def with_a_wrapper(mp: Milepost) -> None:
    """It returns a task, and sets what it sets before there is one."""

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(message: Message[Any]) -> Any:
            serve(message.data)
            return asyncio.ensure_future(function(message))

        return call

    @mp.subscription("all", category="order")
    @wrapped
    async def handle(message: Message[Any]) -> None:
        assert tenant.get() == f"tenant {message.data}"


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


@pytest.fixture
async def one_by_one(make_mp: Callable[..., Milepost]) -> AsyncIterator[Milepost]:
    """An open `Milepost` that makes one call at a time: each follows another in the same place."""
    async with make_mp(concurrency=1) as mp:
        yield mp


async def fill(mp: Milepost) -> None:
    for number in range(COUNT):
        await mp.append(f"order-{number % 3}", NewMessage("placed", number))


SHAPES = [
    at_once,
    with_a_wait,
    that_fail,
    in_batches,
    in_transactions,
    in_transactions_of_batches,
    in_threads,
    in_threads_of_batches,
    with_providers,
    with_a_wrapper,
]


@pytest.mark.shard(
    "variants", fast=["with_a_wait", "in_threads_of_batches", "in_transactions_of_batches", "with_a_wrapper"]
)
@pytest.mark.parametrize("declare", SHAPES)
async def test_a_call_finds_nothing_of_another(one_by_one: Milepost, declare: Callable[[Milepost], None]) -> None:
    mp = one_by_one
    declare(mp)
    await fill(mp)
    await mp.run_until_idle(errors="park")
    assert set(seen) == {"nobody"}
    assert len(seen) >= COUNT / 2
    assert tenant.get() == "nobody"


@pytest.mark.shard("variants", fast=["at_once", "in_threads", "in_transactions", "with_providers"])
@pytest.mark.parametrize("declare", SHAPES)
async def test_a_call_finds_what_was_there_when_the_program_started(
    one_by_one: Milepost, declare: Callable[[Milepost], None]
) -> None:
    mp = one_by_one
    declare(mp)
    await fill(mp)

    async def run() -> None:
        tenant.set("everybody")
        await mp.run_until_idle(errors="park")

    await asyncio.create_task(run(), context=copy_context())
    assert set(seen) == {"everybody"}


async def test_what_reads_a_payload_leaves_nothing(one_by_one: Milepost) -> None:
    mp = one_by_one

    @mp.message("placed")
    @dataclass
    class Placed:
        number: int

        def __post_init__(self) -> None:
            serve(self.number)

    @mp.subscription("all", category="order")
    async def handle(event: Placed) -> None: ...

    @mp.subscription("plain", category="order")
    def plain(event: Placed) -> None: ...

    for number in range(COUNT):
        await mp.append("order-1", NewMessage("placed", {"number": number}))
    seen.clear()
    # One after the other: together they may read a message once.
    for name in ("all", "plain"):
        report = await mp.run_until_idle(only=name)
        assert report[name].handled == COUNT
    assert seen == 2 * COUNT * ["nobody"]


async def test_listeners_leave_nothing(one_by_one: Milepost) -> None:
    mp = one_by_one
    heard: list[str] = []

    @mp.on_event
    def each(event: Handled) -> None:
        tenant.set("of a listener")

    @mp.on_event
    def several(event: HandledSeveral) -> None:
        tenant.set("of another listener")

    @mp.on_event
    async def later(event: Handled) -> None:
        heard.append(tenant.get())
        await asyncio.sleep(0)
        tenant.set("of an async listener")

    in_transactions(mp)
    await fill(mp)
    await mp.run_until_idle()
    assert set(seen) == {"nobody"}
    assert not {"of an async listener"} & set(heard)
    assert len(heard) == COUNT


async def test_tasks_of_a_call_have_its_variables(mp: Milepost) -> None:
    found: list[str] = []

    async def look() -> None:
        found.append(tenant.get())

    @mp.subscription("all", category="order")
    async def handle(message: Message[Any]) -> None:
        tenant.set(f"tenant {message.data}")
        async with asyncio.TaskGroup() as group:
            group.create_task(look())
        await asyncio.to_thread(lambda: found.append(tenant.get()))

    await fill(mp)
    await mp.run_until_idle()
    assert sorted(found) == sorted(2 * [f"tenant {number}" for number in range(COUNT)])


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_call_has_what_its_providers_set_and_they_what_it_sets(mp: Milepost, is_async: bool) -> None:
    """In one context, in which what was set can also be reset, on the loop or in a thread."""
    found: list[str] = []

    @mp.provide
    async def number(message: Message) -> int:  # type: ignore[type-arg]
        tenant.set(f"tenant {message.data}")
        return int(message.data)

    @mp.provide
    async def customer(number: int) -> AsyncIterator[Customer]:
        token = tenant.set(f"{tenant.get()}, customer")
        yield Customer(tenant.get())
        found.append(tenant.get())
        tenant.reset(token)
        found.append(tenant.get())

    @mp.provide
    def text(customer: Customer) -> Iterator[str]:
        token = tenant.set(f"{tenant.get()}, text")
        yield tenant.get()
        tenant.reset(token)

    def serve_with(text: str) -> None:
        assert tenant.get() == text
        found.append(text)

    if is_async:

        @mp.subscription("all", category="order")
        async def handle(message: Message[Any], text: str) -> None:
            serve_with(text)
    else:

        @mp.subscription("all", category="order")
        def plain(message: Message[Any], text: str) -> None:
            serve_with(text)

    await mp.append("order-1", NewMessage("placed", 1))
    await mp.run_until_idle()
    assert found == ["tenant 1, customer, text", "tenant 1, customer", "tenant 1"]
    assert tenant.get() == "nobody"


async def test_a_time_limit_within_a_call_is_the_calls_own(mp: Milepost) -> None:
    ended: list[str] = []

    @mp.subscription("all", category="order")
    async def handle(message: Message[Any]) -> None:
        tenant.set("late")
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            await asyncio.sleep(0)
            ended.append(tenant.get())

    await fill(mp)
    report = await mp.run_until_idle()
    assert report["all"].handled == COUNT
    assert ended == COUNT * ["late"]


async def test_an_error_after_a_wait_has_its_own_circumstances() -> None:
    """An error that was caught before is not the circumstance of another one."""
    failing = asyncio.get_running_loop().create_future()
    failing.set_exception(KeyError("caught"))

    async def call() -> None:
        try:
            await asyncio.sleep(0)
            await failing
        except KeyError:
            pass
        raise ValueError("raised")

    with pytest.raises(ValueError, match="raised") as raised:
        await call_in_copied_context(call)
    assert raised.value.__context__ is None


async def test_a_cancelled_call_can_clean_up() -> None:
    steps: list[str] = []
    waiting = asyncio.Event()

    async def call() -> None:
        tenant.set("mine")
        try:
            waiting.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append(tenant.get())

    task = asyncio.create_task(call_in_copied_context(call))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["mine"]
