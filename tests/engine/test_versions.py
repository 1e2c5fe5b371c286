"""A payload of a newer version than the program knows waits, uncounted, for a worker that knows it."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from engine.pulling import Clock
from milepost import Context, InvalidMessage, Message, Milepost, NewMessage, Retry, Transaction
from milepost.dispatch import State
from milepost.engine.observe.events import Parked, RetryScheduled
from milepost.engine.operate.deliveries import DeliveryInfo
from support import MakeMilepost

WORDS = "data: Message('order.placed', 'order-1' 2, position 2) has version 2, and this program knows 1"


@dataclass
class Old:
    order: int


@dataclass
class New:
    order: int
    currency: str


def new(order: int) -> NewMessage:
    return NewMessage("order.placed", {"order": order, "currency": "EUR"}, metadata={"schema_version": 2})


async def placed(mp: Milepost) -> None:
    """Three orders, the second of which a newer program has placed, and one of another stream."""
    for stream, message in (
        ("order-1", NewMessage("order.placed", {"order": 1})),
        ("order-1", new(2)),
        ("order-1", NewMessage("order.placed", {"order": 3})),
        ("order-2", NewMessage("order.placed", {"order": 4})),
    ):
        await mp.append(stream, message)


async def rows(mp: Milepost) -> dict[int, DeliveryInfo]:
    return {row.position: row async for row in mp.manage("orders").deliveries()}


class Seen:
    """Handlers of each kind, which note the orders that they have handled, and at which attempt."""

    def __init__(self) -> None:
        self.orders: list[tuple[int, int]] = []

    def payload(self, cls: type) -> Callable[..., Any]:
        async def handle(event: Any, context: Context) -> None:
            self.orders.append((event.order, context.attempt))

        handle.__annotations__["event"] = cls
        return handle

    def in_a_thread(self, cls: type) -> Callable[..., Any]:
        def handle(event: Any, context: Context) -> None:
            self.orders.append((event.order, context.attempt))

        handle.__annotations__["event"] = cls
        return handle

    def exactly_once(self, cls: type) -> Callable[..., Any]:
        async def handle(event: Any, context: Context, tx: Transaction) -> None:
            await tx.execute("select 1")
            self.orders.append((event.order, context.attempt))

        handle.__annotations__["event"] = cls
        return handle

    def batch(self, cls: type) -> Callable[..., Any]:
        async def handle(events: Any) -> None:
            self.orders += [(event.order, 1) for event in events]

        handle.__annotations__["events"] = list[cls]  # type: ignore[valid-type]
        return handle

    def typed_message(self, cls: type) -> Callable[..., Any]:
        async def handle(message: Any, context: Context) -> None:
            self.orders.append((message.data.order, context.attempt))

        handle.__annotations__["message"] = Message[cls]  # type: ignore[valid-type]
        return handle

    def any_message(self, cls: type) -> Callable[..., Any]:
        """It decodes the payload itself."""

        async def handle(message: Message[Any], context: Context) -> None:
            self.orders.append((message.data.order, context.attempt))

        return handle

    def any_messages(self, cls: type) -> Callable[..., Any]:
        async def handle(messages: list[Message[Any]]) -> None:
            self.orders += [(each, 1) for each in [message.data.order for message in messages]]

        return handle


def program(mp: Milepost, cls: type, seen: Seen, kind: str, **options: Any) -> Milepost:
    """A program that knows the first version of the payload, or the second one."""
    mp.message("order.placed", version=1 if cls is Old else 2)(cls)
    if cls is New:

        @mp.upcast("order.placed", from_version=1)
        def with_currency(data: dict[str, Any]) -> dict[str, Any]:
            return {**data, "currency": "EUR"}

    mp.subscription("orders", category="order", **options)(getattr(seen, kind)(cls))
    return mp


KINDS = ["payload", "in_a_thread", "exactly_once", "batch", "typed_message", "any_message", "any_messages"]


@pytest.mark.shard("variants", fast=["payload", "exactly_once", "any_messages"])
@pytest.mark.parametrize("kind", KINDS)
async def test_it_waits_for_a_program_that_knows_it(make_mp: MakeMilepost, kind: str) -> None:
    seen = Seen()
    async with program(make_mp(), Old, seen, kind, retry=Retry(attempts=1)) as old:
        await placed(old)
        await old.run_until_idle()
        # What comes after it in its stream waits as well; nothing else does.
        assert sorted(seen.orders) == [(1, 1), (4, 1)]
        found = await rows(old)
        assert {position: row.state for position, row in found.items()} == {2: State.RETRYING, 3: State.WAITING}
        assert (found[2].attempts, found[2].total, found[2].reason, found[2].error) == (0, 0, WORDS, "")
        await Clock(old).advance(10)
    async with program(make_mp(), New, seen, kind, retry=Retry(attempts=1)) as newer:
        await newer.run_until_idle()
        # Its first attempt.
        assert seen.orders[2:] == [(2, 1), (3, 1)]
        assert await rows(newer) == {}


@pytest.mark.shard("variants", fast=["payload-failures", "batch-all"])
@pytest.mark.parametrize("tracking", ["failures", "all"])
@pytest.mark.parametrize("kind", ["payload", "exactly_once", "batch"])
async def test_it_is_parked_with_that_reason_after_ten_minutes(
    mp: Milepost, caplog: pytest.LogCaptureFixture, kind: str, tracking: str
) -> None:
    seen, clock, events = Seen(), Clock(mp), list[Any]()
    program(mp, Old, seen, kind, tracking=tracking)

    @mp.on_event
    def note(event: Parked | RetryScheduled) -> None:
        events.append(event)

    with caplog.at_level(logging.WARNING, "milepost"):
        await placed(mp)
        await mp.run_until_idle()
        for seconds in (10, 300, 280):
            await clock.advance(seconds)
            await mp.run_until_idle()
            row = (await rows(mp))[2]
            assert (row.state, row.attempts, row.reason) == (State.RETRYING, 0, WORDS)
        assert [type(event) for event in events] == [RetryScheduled] * 4
        [first] = [record for record in caplog.records if "position 2" in record.message]
        assert (first.levelno, WORDS in first.message) == (logging.WARNING, True)
        await clock.advance(10)
        await mp.run_until_idle()
    row = (await rows(mp))[2]
    assert (row.state, row.reason) == (State.PARKED, WORDS)
    assert caplog.records[-1].levelno == logging.ERROR
    assert isinstance(events[-1], Parked)
    assert events[-1].reason == WORDS
    assert (await mp.manage("orders").info()).parked == 1

    # Who retries it gives it another ten minutes.
    await mp.manage("orders").retry([2])
    await mp.run_until_idle()
    assert (await rows(mp))[2].state is State.RETRYING
    await clock.advance(601)
    await mp.run_until_idle()
    assert (await rows(mp))[2].state is State.PARKED


async def test_ten_minutes_begin_when_it_is_first_looked_at(mp: Milepost) -> None:
    """However long a subscription was behind."""
    clock = Clock(mp)
    program(mp, Old, Seen(), "payload")
    await placed(mp)
    await clock.advance(5000)
    await mp.run_until_idle()
    assert (await rows(mp))[2].state is State.RETRYING


async def test_another_message_that_a_handler_reads_is_an_error_of_the_handler(mp: Milepost) -> None:
    mp.message("order.placed")(Old)
    await mp.append("order-1", new(1))

    @mp.subscription("looks", category="look")
    async def look(message: Message[Any]) -> None:
        [other] = [each async for each in mp.read("order-1")]
        _ = other.data

    await mp.append("look-1", NewMessage("look"))
    with pytest.raises(InvalidMessage, match="has version 2, and this program knows 1"):
        await mp.run_until_idle()


async def test_a_reader_is_told(mp: Milepost) -> None:
    mp.message("order.placed")(Old)
    await mp.append("order-1", new(1))
    [message] = [each async for each in mp.read("order-1")]
    with pytest.raises(InvalidMessage, match="has version 2, and this program knows 1") as failure:
        _ = message.data
    assert failure.value.field == "data"
    assert message.raw == '{"order": 1, "currency": "EUR"}'


@pytest.mark.parametrize("version", ["2", 0, -1, 1.5, None, True, [2]])
async def test_what_is_no_version(mp: Milepost, version: Any) -> None:
    mp.message("order.placed", version=2)(New)
    metadata = {"schema_version": version}
    await mp.append("order-1", NewMessage("order.placed", {"order": 1, "currency": "EUR"}, metadata=metadata))
    [message] = [each async for each in mp.read("order-1")]
    with pytest.raises(InvalidMessage, match="schema_version of .* a version is wanted, not"):
        _ = message.data


async def test_one_that_is_tried_says_what_would_become_of_it(mp: Milepost) -> None:
    program(mp, Old, Seen(), "batch")
    await placed(mp)
    [subscription] = mp.declared()
    trial = mp.dry_run(subscription)
    outcome = await trial.run(await trial.choose([1, 2]), timed=True)
    waits = outcome.prospects[2]
    assert (waits.state, waits.counts, waits.after, waits.reason) == ("retrying", False, 10, WORDS)
    assert outcome.prospects[1].state == "again"
    assert not outcome.has_failed
