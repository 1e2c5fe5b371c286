"""What is kept of a failure: a reason of one line, and the error with where it was raised."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from milepost import Message, Milepost, NewMessage, Park, Retry, RetryLater, Skip, Transaction
from milepost.dispatch.retry import one_line
from milepost.engine.handlers.handler_loop import ThreadBatch
from milepost.engine.handlers.invoker import ThreadCall
from milepost.engine.observe.events import Parked, Skipped
from support import qualified

OPTIONS: dict[str, Any] = {"category": "order", "lanes": 1, "retry": Retry(attempts=1)}

Handle = Callable[[], Any]


def on_the_loop(mp: Milepost, handle: Handle, **options: Any) -> None:
    @mp.subscription("orders", **OPTIONS, **options)
    async def one(message: Message[Any]) -> None:
        await handle()


def in_a_batch(mp: Milepost, handle: Handle, **options: Any) -> None:
    @mp.subscription("orders", **OPTIONS, **options)
    async def several(messages: list[Message[Any]]) -> None:
        await handle()


def in_a_transaction(mp: Milepost, handle: Handle, **options: Any) -> None:
    @mp.subscription("orders", **OPTIONS, **options)
    async def with_transaction(message: Message[Any], tx: Transaction) -> None:
        await handle()


def in_a_thread(mp: Milepost, handle: Handle, **options: Any) -> None:
    @mp.subscription("orders", **OPTIONS, **options)
    def plain(message: Message[Any]) -> None:
        handle()


def in_a_thread_of_batches(mp: Milepost, handle: Handle, **options: Any) -> None:
    @mp.subscription("orders", **OPTIONS, **options)
    def plain_several(messages: list[Message[Any]]) -> None:
        handle()


Declare = Callable[..., None]
ON_THE_LOOP = [on_the_loop, in_a_batch, in_a_transaction]
IN_THREADS = [in_a_thread, in_a_thread_of_batches]


async def kept(mp: Milepost) -> tuple[str, str]:
    """Reason and error of the one message that has them."""
    await mp.append("order-1", NewMessage("placed"))
    await mp.run_until_idle(errors="park")
    [delivery] = [each async for each in mp.manage("orders").deliveries()]
    return delivery.reason, delivery.error


class TestCancelled:
    """A handler's own cancellation is a failure like others."""

    def is_told(self, reason: str, error: str) -> None:
        assert (
            reason == "HandlerCancelled: something that the handler waited for was cancelled: the pool is closed"
        )
        assert "in fetch" in error
        assert "ValueError: because" in error
        assert error.index("ValueError: because") < error.index("CancelledError: the pool is closed")

    @pytest.mark.shard("variants", fast=["on_the_loop"])
    @pytest.mark.parametrize("declare", ON_THE_LOOP)
    async def test_on_the_loop(self, mp: Milepost, declare: Declare) -> None:
        async def fetch() -> None:
            raise asyncio.CancelledError("the pool is closed") from ValueError("because")

        declare(mp, fetch)
        self.is_told(*await kept(mp))

    @pytest.mark.parametrize("declare", IN_THREADS)
    async def test_in_a_thread(self, mp: Milepost, declare: Declare) -> None:
        def fetch() -> None:
            raise asyncio.CancelledError("the pool is closed") from ValueError("because")

        declare(mp, fetch)
        self.is_told(*await kept(mp))


class TestTimeOut:
    """Whoever looks for the cause of a time-out sees what the handler was waiting for."""

    @pytest.mark.shard("variants", fast=["on_the_loop"])
    @pytest.mark.parametrize("declare", ON_THE_LOOP)
    async def test_on_the_loop(self, mp: Milepost, declare: Declare) -> None:
        async def call_the_bank() -> None:
            await asyncio.Event().wait()  # the bank does not answer

        declare(mp, call_the_bank, timeout=0.02)
        reason, error = await kept(mp)
        assert reason == "TimedOut: timed out after 0.02 s"
        assert "in call_the_bank" in error
        assert "the bank does not answer" in error

    @pytest.fixture
    def looked(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
        """Set when somebody has looked where a thread is."""
        looked = threading.Event()

        def patch(cls: Any) -> None:
            where = cls.where

            def look(self: Any) -> Any:
                try:
                    return where(self)
                finally:
                    looked.set()

            monkeypatch.setattr(cls, "where", look)

        patch(ThreadBatch)
        patch(ThreadCall)
        yield looked
        looked.set()

    @pytest.mark.parametrize("declare", IN_THREADS)
    async def test_in_a_thread(self, mp: Milepost, declare: Declare, looked: threading.Event) -> None:
        def call_the_bank() -> None:
            looked.wait(60)  # the bank does not answer

        declare(mp, call_the_bank, timeout=0.02)
        reason, error = await kept(mp)
        assert reason == "TimedOut: timed out after 0.02 s"
        assert "in call_the_bank" in error
        assert "the bank does not answer" in error
        assert error.splitlines()[-1].endswith("TimedOut: timed out after 0.02 s")


class Order(msgspec.Struct):
    number: int


def one_order(mp: Milepost) -> None:
    @mp.subscription("orders", **OPTIONS)
    async def handle(order: Order) -> None: ...


def orders(mp: Milepost) -> None:
    @mp.subscription("orders", **OPTIONS)
    async def handle(orders: list[Order]) -> None: ...


def orders_in_a_transaction(mp: Milepost) -> None:
    @mp.subscription("orders", **OPTIONS)
    async def handle(orders: list[Order], tx: Transaction) -> None: ...


def orders_in_a_thread(mp: Milepost) -> None:
    @mp.subscription("orders", **OPTIONS)
    def handle(order: Order) -> None: ...


@pytest.mark.shard("variants", fast=["one_order", "orders_in_a_thread"])
@pytest.mark.parametrize("declare", [one_order, orders, orders_in_a_transaction, orders_in_a_thread])
async def test_the_error_of_an_upcast_is_kept(mp: Milepost, declare: Callable[[Milepost], None]) -> None:
    mp.message("placed", version=2)(Order)

    @mp.upcast("placed", from_version=1)
    def with_number(data: Any) -> Any:
        return {"number": data["no"]}

    declare(mp)
    await mp.append("order-1", NewMessage("placed", {}))
    await mp.append("order-2", NewMessage("placed", {"no": 1}))
    await mp.run_until_idle(errors="park")
    [delivery] = [each async for each in mp.manage("orders").deliveries()]
    assert (delivery.position, delivery.state) == (1, "parked")
    assert "KeyError('no')" in delivery.reason
    assert "in with_number" in delivery.error
    assert delivery.error.rstrip().endswith("KeyError: 'no'")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain", "plain"),
        ("", ""),
        ("\n", ""),
        ("two\nlines", "two lines"),
        (" 3 validation errors\r\n\n  field required\n", "3 validation errors field required"),
        ("a\tb\x0bc\x0cd\u2028e\x85f", "a\tb c d e f"),
    ],
)
class TestOneLine:
    def test_of_a_text(self, text: str, line: str) -> None:
        assert one_line(text) == line

    @pytest.mark.shard(
        "variants",
        fast=[
            "ValueError-plain-plain",
            "ValueError- 3 validation errors\\r\\n\\n  field required\\n-3 validation errors field required",
            "Park-a\\tb\\x0bc\\x0cd\\u2028e\\x85f-a\\tb c d e f",
        ],
    )
    @pytest.mark.parametrize("error", [ValueError, Park])
    async def test_of_an_error(self, mp: Milepost, error: type[Exception], text: str, line: str) -> None:
        async def fail() -> None:
            raise error(text)

        on_the_loop(mp, fail)
        reason, _ = await kept(mp)
        said = line if error is Park else f"ValueError: {line}" if text.strip() else "ValueError"
        assert reason in (said, said or "gave up after attempt 1")

    def test_of_other_outcomes(self, text: str, line: str) -> None:
        assert (Skip(text).reason, RetryLater(1, reason=text).reason) == (line, line)

    @pytest.mark.shard(
        "variants",
        fast=[
            " 3 validation errors\\r\\n\\n  field required\\n-3 validation errors field required",
            "a\\tb\\x0bc\\x0cd\\u2028e\\x85f-a\\tb c d e f",
        ],
    )
    async def test_of_a_consumer(self, mp: Milepost, text: str, line: str) -> None:
        await mp.create_subscription("orders", category="order")
        told: list[str] = []

        @mp.on_event
        def listen(event: Parked | Skipped) -> None:
            told.append(event.reason)

        for number in range(2):
            await mp.append(f"order-{number}", NewMessage("placed"))
        async with mp.consumer("orders", capacity=1) as consumer:
            await (await anext(consumer)).park(text)
            await (await anext(consumer)).skip(text)
        [delivery] = [each async for each in mp.manage("orders").deliveries()]
        assert (delivery.reason, told) == (line, [line, line])

    @pytest.mark.shard(
        "variants",
        fast=[
            "library-a\\tb\\x0bc\\x0cd\\u2028e\\x85f-a\\tb c d e f",
            "sql- 3 validation errors\\r\\n\\n  field required\\n-3 validation errors field required",
        ],
    )
    @pytest.mark.parametrize("through", ["library", "sql"])
    async def test_of_what_is_pulled(self, mp: Milepost, text: str, line: str, through: str) -> None:
        await mp.create_subscription("orders", category="order", tracking="all")
        await mp.append("order-1", NewMessage("placed"))
        [task] = await mp.pull("orders")
        if through == "library":
            await mp.settle(park={task: text})
        else:
            sql = qualified("select * from {}.settle(park => %(tokens)s, reason => %(reason)s)", mp)
            await mp.log.database.execute(sql, {"tokens": [task.token], "reason": text})
        [delivery] = [each async for each in mp.manage("orders").deliveries()]
        assert delivery.reason == line
