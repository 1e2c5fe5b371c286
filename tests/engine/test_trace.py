"""Where messages are: each state with a real program, definitions that changed, and what it costs."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from milepost import (
    AdvisoryLeases,
    InvalidMessage,
    MemoryProgress,
    Message,
    Milepost,
    MilepostError,
    NewMessage,
    Park,
    Retry,
    Skip,
    Transaction,
    UnknownSubscription,
    by_correlation,
    by_function,
    by_property,
)
from milepost.engine.observe.worker_reports import WorkerReporter
from milepost.engine.operate.trace import tracer
from milepost.engine.operate.trace.results import Traced
from milepost.names import bucket_of
from milepost.postgres import pool
from milepost.postgres.statements import Statements
from patience import looked_at, within
from support import MakeMilepost, qualified, until_somebody_waits_for

MORE = pytest.mark.shard("simulation")
BEHIND = timedelta(seconds=5)
"""What a worker's clock may be behind the database's: as long as the answer took that it was set by."""


@pytest.fixture(autouse=True)
def workers_have_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can answer does: nobody is taken for silent because a machine stands still for a moment."""
    monkeypatch.setattr(tracer, "WORKER_ANSWER_SECONDS", 30.0)


def new(data: Any = None, type: str = "placed", **properties: Any) -> NewMessage:
    return NewMessage(type, data, properties=properties)


async def traced(mp: Milepost, target: str | UUID, name: str, **options: Any) -> list[Traced]:
    return list(await mp.trace(target, subscription=name, **options))


async def states(mp: Milepost, target: str | UUID, name: str) -> list[str]:
    return [each.state for each in await traced(mp, target, name)]


async def until(condition: Callable[[], Any]) -> None:
    async with within(40, lambda: looked_at(condition)):
        while not await condition():
            await asyncio.sleep(0.02)


async def until_states(mp: Milepost, stream: str, name: str, wanted: list[str]) -> list[Traced]:
    found: list[Traced] = []
    async with within(40, lambda: f"{found}, wanted {wanted}"):
        while [each.state for each in found] != wanted:
            await asyncio.sleep(0.02)
            found = await traced(mp, stream, name)
    return found


async def execute(mp: Milepost, text: str, **parameters: Any) -> Any:
    return await mp.log.database.execute(qualified(text, mp), parameters)


def streams(lanes: int) -> list[str]:
    """A stream of each lane of a subscription that orders by stream."""
    named = {bucket_of(f"order-{n}") % lanes: f"order-{n}" for n in range(1000)}
    return [named[lane] for lane in range(lanes)]


class Blocking:
    """A handler that says what it begins with and waits until it may end."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[Message[Any]] = asyncio.Queue()
        self.may_end = asyncio.Event()

    async def __call__(self, message: Message[Any]) -> None:
        if message.data == "slow":
            self.begun.put_nowait(message)
            await self.may_end.wait()


# States


async def test_what_was_handled_and_what_was_not_for_a_subscription(mp: Milepost) -> None:
    @mp.subscription("all")
    async def everything(message: Message[Any]) -> None: ...

    @mp.subscription("typed", category=["order", "refund"], types=["order.*", "gone"])
    async def by_type(message: Message[Any]) -> None: ...

    @mp.subscription("paid", category="payment")
    async def by_category(message: Message[Any]) -> None: ...

    @mp.subscription("one", stream="order-2")
    async def by_stream(message: Message[Any]) -> None: ...

    @mp.subscription("large", where='amount >= 100 && (region == "EU" || region == "UK")')
    async def large(message: Message[Any]) -> None: ...

    await mp.append("order-1", [new(type="order.placed", amount=100, region="UK"), new(amount=5, region="EU")])
    await mp.append("order-1", [new(amount=500, region="US"), new(region="EU"), new(amount="7")])
    await mp.run_until_idle()
    trace = await mp.trace("order-1")
    assert [message.version for message in trace.messages] == [1, 2, 3, 4, 5]
    assert len(trace) == 25
    assert trace[0].message == trace.messages[0]
    assert trace[0].address == "default/all"
    assert await states(mp, "order-1", "all") == ["done"] * 5
    assert await states(mp, "order-1", "typed") == ["done", *["not selected"] * 4]
    assert str((await traced(mp, "order-1", "typed"))[1]) == (
        "not selected: it takes types gone, order.*, not placed"
    )
    assert str((await traced(mp, "order-1", "paid"))[0]) == "not selected: it takes category payment, not order"
    assert str((await traced(mp, "order-1", "one"))[0]) == "not selected: it takes stream order-2, not order-1"
    done, small, elsewhere, none, text = await traced(mp, "order-1", "large")
    assert (str(done), done.definition, done.reached) == ("done", 1, True)
    assert str(small) == "filtered out: amount >= 100 is false (amount is 5)"
    assert str(elsewhere) == (
        'filtered out: region == "EU" is false (region is "US") and region == "UK" is false (region is "US")'
    )
    assert [part.properties for part in elsewhere.parts] == [{"region": "US"}] * 2
    assert str(none) == 'filtered out: amount >= 100: the message has no property "amount"'
    assert text.parts[0].value is None
    assert "integer" in str(text)


async def test_a_parked_message_and_what_waits_behind_it(mp: Milepost) -> None:
    @mp.subscription("odd", category="order", lanes=1)
    async def handle(message: Message[Any]) -> None:
        if message.data == "odd":
            raise Park("too\nodd")

    await mp.append("order-1", [new(), new("odd"), new(), new()])
    await mp.run_until_idle()
    _, parked, waiting, last = await traced(mp, "order-1", "odd")
    assert (parked.state, parked.reason, parked.attempts, parked.total) == ("parked", "too odd", 1, 1)
    assert parked.since is not None
    assert parked.since.tzinfo is not None
    assert (parked.holds, [each.version for each in parked.holds_first]) == (2, [3, 4])
    assert "after 1 attempt: too odd, 2 wait behind it, first order-1 version 3 (position 3)" in str(parked)
    for each in (waiting, last):
        assert each.state == "waiting"
        behind = each.waiting_behind
        assert behind is not None
        assert (behind.position, behind.stream, behind.version, behind.state) == (2, "order-1", 2, "parked")
        assert str(each) == "waiting behind order-1 version 2 (position 2), which is parked"
    assert each.holds == 0


async def test_where_parked_messages_hold_nobody_others_wait_for_the_one_that_does(mp: Milepost) -> None:
    @mp.subscription("odd", lanes=1, on_park="continue", retry=Retry(delay=1000))
    async def handle(message: Message[Any]) -> None:
        if message.data == "odd":
            raise Park("odd")
        if message.data == "bad":
            raise ValueError("bad")

    await mp.append("order-1", [new("odd"), new("bad"), new(), new()])
    async with mp.running():
        found = await until_states(mp, "order-1", "odd", ["parked", "retrying", "waiting", "waiting"])
    assert [each.holds for each in found] == [0, 2, 0, 0]
    assert [each.waiting_behind and each.waiting_behind.version for each in found] == [None, None, 2, 2]


async def test_a_retrying_message(mp: Milepost) -> None:
    @mp.subscription("bad", lanes=1, retry=Retry(delay=1000, max_delay=1000, jitter=0))
    async def handle(message: Message[Any]) -> None:
        raise ValueError("bad luck")

    await mp.append("order-1", new())
    async with mp.running():
        [retrying] = await until_states(mp, "order-1", "bad", ["retrying"])
        assert retrying.stopped is None
    assert retrying.due is not None
    assert timedelta(seconds=900) < retrying.due - datetime.now(UTC) < timedelta(seconds=1001)
    assert (retrying.reason, retrying.attempts) == ("ValueError: bad luck", 1)
    assert "Traceback" in retrying.error
    assert str(retrying).startswith("retrying after 1 attempt: ValueError: bad luck, next at ")
    [alone] = await traced(mp, "order-1", "bad")
    assert alone.stopped == "no worker has its lane"


async def test_in_flight_by_its_row(mp: Milepost) -> None:
    """With `tracking="all"` a message has its row before it starts."""
    handler = Blocking()
    mp.subscription("tracked", lanes=1, tracking="all")(handler.__call__)
    await mp.append("order-1", [new("slow"), new()])
    async with mp.running():
        await handler.begun.get()
        [slow, _] = await traced(mp, "order-1", "tracked")
        [owner] = (await mp.manage("tracked").info()).owners
        assert (slow.state, slow.owner) == ("in flight", owner)
        assert slow.since is not None
        assert str(slow).startswith(f"in flight with {owner} since ")
        await execute(mp, "update {}.workers set beat = beat - interval '1 day'")
        await execute(mp, "delete from {}.reports")
        [slow, _] = await traced(mp, "order-1", "tracked")
        assert (slow.state, slow.owner, slow.stopped) == ("in flight", None, "no worker has its lane")
        handler.may_end.set()
    await mp.run_until_idle()
    assert await states(mp, "order-1", "tracked") == ["done", "done"]


REPORT = """
    insert into {}.reports (subscription, worker, until, rate, in_flight, flights)
    select id, 'w-1', %(until)s, 0, 1,
           jsonb_build_array(jsonb_build_object('position', %(position)s::bigint, 'since', %(since)s::float8))
    from {}.subscriptions
    on conflict (subscription, worker) do update set until = excluded.until, flights = excluded.flights
"""


async def report(mp: Milepost, position: int, since: datetime, until: datetime) -> None:
    text = REPORT.replace("{}", "{0}")
    await execute(mp, text, position=position, since=since.timestamp(), until=until)


async def test_in_flight_by_what_its_worker_reports(mp: Milepost) -> None:
    """Workers are asked what they have in hand; nothing is stored of it otherwise."""
    handler = Blocking()
    mp.subscription("slow", lanes=1)(handler.__call__)
    await mp.run_until_idle()
    async with mp.running():
        await until(lambda: _is_held(mp, "slow"))
        await mp.append("order-1", [new("slow"), new()])
        begun = await handler.begun.get()
        [slow, behind] = await traced(mp, "order-1", "slow")
        assert (slow.state, behind.state) == ("in flight", "not reached")
        assert behind.waiting_behind is not None
        assert (behind.waiting_behind.version, behind.waiting_behind.state) == (1, "in flight")
        assert str(behind).endswith("and will wait behind order-1 version 1 (position 1), which is in flight")
        [alone] = await traced(mp, "order-1", "slow", limit=1)
        assert alone.waiting_behind == behind.waiting_behind
        [owner] = (await mp.manage("slow").info()).owners
        assert (slow.owner, slow.reached, slow.stopped) == (owner, True, None)
        assert slow.since is not None
        [[asked]] = await execute(mp, "select {}.clock()")
        assert begun.time - BEHIND < slow.since < asked
        # It began when it did, however often one asks.
        [again, _] = await traced(mp, "order-1", "slow")
        assert again.since is not None
        assert begun.time - BEHIND < again.since < asked
        handler.may_end.set()
    assert await states(mp, "order-1", "slow") == ["done", "done"]


@pytest.mark.shard("variants", fast=["thread", "exactly once", "advisory"])
@pytest.mark.parametrize("kind", ["thread", "batch", "exactly once", "consumer", "advisory"])
async def test_in_flight_whoever_has_it(make_mp: MakeMilepost, kind: str) -> None:
    mp = make_mp(leases=AdvisoryLeases() if kind == "advisory" else None)
    begun, may_end = threading.Event(), threading.Event()

    def wait(message: Message[Any]) -> None:
        begun.set()
        may_end.wait(20)

    async def wait_for_batch(messages: list[Message[Any]]) -> None:
        await asyncio.to_thread(wait, messages[0])

    async def write(message: Message[Any], tx: Transaction) -> None:
        await asyncio.to_thread(wait, message)

    async def consume() -> None:
        async with mp.consumer("slow") as consumer:
            async for delivery in consumer:
                async with delivery as message:
                    await asyncio.to_thread(wait, message)
                return

    async with mp, AsyncExitStack() as stack:
        if kind == "consumer":
            await mp.create_subscription("slow")
            consuming = asyncio.create_task(consume())
            stack.push_async_callback(asyncio.wait, [consuming])
        else:
            handlers: dict[str, Any] = {"batch": wait_for_batch, "exactly once": write}
            mp.subscription("slow", lanes=1)(handlers.get(kind, wait))
            await stack.enter_async_context(mp.running())
        stack.callback(may_end.set)
        await mp.append("order-1", new())
        assert await asyncio.to_thread(begun.wait, 20)
        [slow] = await traced(mp, "order-1", "slow")
        assert slow.state == "in flight", slow
        assert slow.owner is not None
        assert slow.note is None


async def test_a_worker_that_does_not_answer(mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a row as long as its lease lasts, and may have the message in hand or not."""
    handler = Blocking()
    mp.subscription("slow", lanes=1)(handler.__call__)
    await mp.append("order-1", new("slow"))
    async with mp.running():
        await handler.begun.get()
        [owner] = (await mp.manage("slow").info()).owners
        [known] = await traced(mp, "order-1", "slow")
        assert (known.state, known.note) == ("in flight", None)
        monkeypatch.setattr(tracer, "WORKER_ANSWER_SECONDS", 0.5)
        monkeypatch.setattr(WorkerReporter, "report", no_report)
        [known] = await traced(mp, "order-1", "slow")
        assert (known.state, known.note) == ("in flight", f"{owner} does not answer")
        await execute(mp, "delete from {}.reports")
        [silent] = await traced(mp, "order-1", "slow")
        assert (silent.state, silent.note) == (
            "not reached",
            f"{owner} may have it in hand, and does not answer",
        )
        assert str(silent).endswith(f"; {silent.note}")
        handler.may_end.set()


async def no_report(self: WorkerReporter, runners: object) -> None: ...


async def test_a_report_of_a_worker_that_has_vanished_counts_no_more(
    mp: Milepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker of the report is none that could answer."""
    monkeypatch.setattr(tracer, "WORKER_ANSWER_SECONDS", 0.1)

    @mp.subscription("slow", lanes=1)
    async def handle(message: Message[Any]) -> None: ...

    await mp.run_until_idle()
    await mp.append("order-1", new())
    now = datetime.now(UTC)
    await report(mp, 1, now, now + timedelta(minutes=1))
    [slow] = await traced(mp, "order-1", "slow")
    assert (slow.state, slow.owner, slow.since) == ("in flight", "w-1", now)
    await report(mp, 1, now, now - timedelta(seconds=1))
    assert await states(mp, "order-1", "slow") == ["not reached"]
    await report(mp, 1, now, now + timedelta(minutes=1))
    await mp.run_until_idle()
    assert await states(mp, "order-1", "slow") == ["done"]


async def test_a_report_and_a_row_the_newer_one_counts(mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker of the report is none that could answer."""
    monkeypatch.setattr(tracer, "WORKER_ANSWER_SECONDS", 0.1)

    @mp.subscription("bad", lanes=1, retry=Retry(delay=1000))
    async def handle(message: Message[Any]) -> None:
        raise ValueError

    await mp.append("order-1", new())
    async with mp.running():
        [retrying] = await until_states(mp, "order-1", "bad", ["retrying"])
    assert retrying.since is not None
    later = datetime.now(UTC) + timedelta(minutes=1)
    await report(mp, 1, retrying.since - timedelta(seconds=1), later)
    assert await states(mp, "order-1", "bad") == ["retrying"]
    await report(mp, 1, retrying.since + timedelta(seconds=1), later)
    [again] = await traced(mp, "order-1", "bad")
    assert (again.state, again.owner, again.attempts, again.due) == ("in flight", "w-1", 1, None)


async def test_skipped_by_a_person_and_by_its_handler(mp: Milepost) -> None:
    @mp.subscription("odd", category="order", lanes=1)
    async def handle(message: Message[Any]) -> None:
        raise Park("odd") if message.data == "odd" else Skip("not wanted")

    await mp.append("order-1", [new(), new("odd")])
    await mp.run_until_idle()
    await mp.manage("odd").skip([2])
    for _ in range(2):
        done, skipped = await traced(mp, "order-1", "odd")
        assert (done.state, skipped.state) == ("done", "skipped")
        assert str(skipped).startswith("skipped by a person at ")
        assert str(skipped).endswith("after 1 attempt: odd")
        await mp.run_until_idle()


async def test_an_unrouted_message(mp: Milepost) -> None:
    @mp.subscription("routed", category="order", lanes=1)
    async def handle(message: Message[Any]) -> None:
        raise Park("odd")

    await mp.append("order-1", new())
    await mp.run_until_idle()
    await execute(mp, "update {}.deliveries set state = 'unrouted'")
    [unrouted] = await traced(mp, "order-1", "routed")
    assert unrouted.state == "unrouted"
    assert "no consumer takes it" in str(unrouted)


async def test_not_reached_and_how_far_behind(mp: Milepost) -> None:
    handler = Blocking()
    mp.subscription("slow", category="order", where="n < 100", lanes=1, window=1)(handler.__call__)
    await mp.run_until_idle()
    await mp.append("payment-1", [new()] * 3)
    await mp.append("order-1", [new("slow", n=1), new(n=2), new(n=200)])
    [first, second, third] = await traced(mp, "order-1", "slow")
    assert (first.state, first.behind, first.lane, first.owner, first.reached) == (
        "not reached",
        4,
        0,
        None,
        False,
    )
    assert first.stopped == "no worker has its lane"
    assert str(first) == "not reached: lane 0 is 4 positions behind it, no worker has its lane"
    assert str(third) == "will be filtered out: n < 100 is false (n is 200)"
    assert str((await traced(mp, "payment-1", "slow"))[0]) == (
        "not selected: it takes category order, not payment"
    )
    async with mp.running():
        await handler.begun.get()
        await until(lambda: _is_held(mp, "slow"))
        [owner] = (await mp.manage("slow").info()).owners
        [_, second, _] = await traced(mp, "order-1", "slow")
        assert (second.state, second.owner, second.stopped) == ("not reached", owner, None)
        await execute(mp, "update {}.subscriptions set stalled = 'all fail'")
        [_, second, _] = await traced(mp, "order-1", "slow")
        assert second.stopped == "the subscription is stalled: all fail"
        await execute(mp, "update {}.subscriptions set status = 'paused'")
        [_, second, _] = await traced(mp, "order-1", "slow")
        assert second.stopped == "the subscription is paused"
        await execute(mp, "update {}.subscriptions set status = 'running', stalled = null")
        handler.may_end.set()


async def _is_held(mp: Milepost, name: str) -> bool:
    return (await mp.manage(name).info()).status == "running"


async def test_what_holds_the_key_of_a_message_that_is_not_reached(mp: Milepost) -> None:
    @mp.subscription("bad", lanes=1, retry=Retry(delay=1000))
    async def handle(message: Message[Any]) -> None:
        raise ValueError

    await mp.append("order-1", new())
    async with mp.running():
        await until_states(mp, "order-1", "bad", ["retrying"])
    await mp.append("order-1", new())
    [_, second] = await traced(mp, "order-1", "bad")
    assert second.state == "not reached"
    assert second.waiting_behind is not None
    assert (second.waiting_behind.version, second.waiting_behind.state) == (1, "retrying")
    assert str(second).endswith("and will wait behind order-1 version 1 (position 1), which is retrying")


async def test_what_is_beyond_the_horizon_waits_for_whoever_holds_it(mp: Milepost) -> None:
    @mp.subscription("all", lanes=1)
    async def handle(message: Message[Any]) -> None: ...

    await mp.run_until_idle()
    async with await psycopg.AsyncConnection.connect(mp.url, application_name="checkout") as connection:
        await mp.append("payment-1", new(), connection=connection)
        await mp.append("order-1", new())
        [held] = await traced(mp, "order-1", "all")
        assert held.state == "not reached"
        assert held.stopped is not None
        assert held.stopped.startswith("the log is final only up to position 0, because of pid ")
        assert "checkout" in held.stopped
        await connection.commit()
    await mp.run_until_idle()
    assert await states(mp, "order-1", "all") == ["done"]


# Where a subscription began


async def test_before_its_start_by_position(mp: Milepost) -> None:
    await mp.append("order-1", [new()] * 4)

    @mp.subscription("late", start=2)
    async def handle(message: Message[Any]) -> None: ...

    await mp.run_until_idle()
    found = await traced(mp, "order-1", "late")
    assert [each.state for each in found] == [*["before its start"] * 2, *["done"] * 2]
    assert str(found[0]) == "before its start: it began after position 2"


async def test_before_its_start_at_now(mp: Milepost) -> None:
    await mp.append("order-1", new())

    @mp.subscription("new", start="now")
    async def handle(message: Message[Any]) -> None: ...

    await mp.run_until_idle()
    await mp.append("order-1", new())
    await mp.run_until_idle()
    old, since = await traced(mp, "order-1", "new")
    assert (old.state, since.state, since.note) == ("before its start", "done", None)


async def test_before_its_start_by_time(mp: Milepost) -> None:
    """Also what was older and committed later, above where the cursor began."""
    async with await psycopg.AsyncConnection.connect(mp.url) as connection:
        await mp.append("order-1", new(), connection=connection)
        await mp.append("order-2", new())
        [rows] = await execute(mp, "select {}.clock()")

        @mp.subscription("timed", start=rows[0])
        async def handle(message: Message[Any]) -> None: ...

        await mp.run_until_idle()
        await connection.commit()
    await mp.append("order-1", new())
    await mp.append("order-2", new())
    before = await traced(mp, "order-1", "timed")
    assert [each.state for each in before] == ["before its start", "not reached"]
    await mp.run_until_idle()
    for stream in ("order-1", "order-2"):
        old, recent = await traced(mp, stream, "timed")
        assert (old.state, recent.state) == ("before its start", "done")
    assert str(old).startswith(f"before its start: it began with messages of {rows[0]:%Y-%m-%d %H:%M}")


# What a person did to it


async def test_what_a_move_passed_over(make_mp: MakeMilepost) -> None:
    async with selecting(make_mp(), "n >= 10") as mp:
        await mp.append("order-1", [new(n=50), new(n=50)])
        await mp.run_until_idle()
        await mp.append("order-1", [new(n=50), new(n=5)])
        await mp.manage("large").move("now")
        await mp.append("order-1", new(n=50))
        await mp.run_until_idle()
        found = await traced(mp, "order-1", "large")
    assert [each.state for each in found] == ["done", "done", "skipped", "filtered", "done"]
    assert str(found[2]).startswith("skipped: the subscription was moved past it at ")


async def test_what_came_again_is_by_the_definition_that_handled_it_last(make_mp: MakeMilepost) -> None:
    async with selecting(make_mp(), "n >= 10", start=1) as old:
        await old.append("order-1", [new(n=n) for n in (50, 5, 50)])
        await old.run_until_idle()
        assert await states(old, "order-1", "large") == ["before its start", "filtered", "done"]
    async with selecting(make_mp(), "n < 10", start=1) as changed:
        await changed.run_until_idle()
        assert await states(changed, "order-1", "large") == ["before its start", "filtered", "done"]
        await changed.manage("large").move("beginning")
        assert await states(changed, "order-1", "large") == ["filtered", "not reached", "filtered"]
        await changed.run_until_idle()
        found = await traced(changed, "order-1", "large")
        assert [(each.state, each.definition) for each in found] == [("filtered", 2), ("done", 2), ("filtered", 2)]


async def test_what_was_handled_before_a_move_to_a_time_stays_done(make_mp: MakeMilepost) -> None:
    async with selecting(make_mp(), "n >= 10") as mp:
        await mp.append("order-1", [new(n=50), new(n=5)])
        await mp.run_until_idle()
        [[between]] = await execute(mp, "select {}.clock()")
        await mp.append("order-1", [new(n=50), new(n=5)])
        await mp.run_until_idle()
        await mp.manage("large").move(between)
        assert await states(mp, "order-1", "large") == ["done", "filtered", "not reached", "filtered"]
        await mp.run_until_idle()
        assert await states(mp, "order-1", "large") == ["done", "filtered", "done", "filtered"]


async def test_a_replay_that_ends_before_the_filter_changed(make_mp: MakeMilepost) -> None:
    """What is beyond it stays as it was decided then, also when nothing but the definitions is left of then."""
    async with selecting(make_mp(), "n >= 10") as old:
        await old.append("order-1", [new(n=n) for n in (50, 50, 50, 5)])
        await old.run_until_idle()
    async with selecting(make_mp(), "n < 10") as changed:
        await changed.append("order-1", [new(n=50), new(n=5)])
        await changed.run_until_idle()
        await changed.manage("large").replay("beginning", 2)
        await changed.run_until_idle()
        found = await traced(changed, "order-1", "large")
    assert [(each.state, each.definition) for each in found] == [
        ("filtered", 2),
        ("filtered", 2),
        ("done", 1),
        ("filtered", 1),
        ("filtered", 2),
        ("done", 2),
    ]


async def test_a_replay(make_mp: MakeMilepost) -> None:
    async with selecting(make_mp(), "n >= 10") as old:
        await old.append("order-1", [new(n=n) for n in (50, 5, 50)])
        await old.run_until_idle()
    async with selecting(make_mp(), "n >= 1") as changed:
        await changed.append("order-1", new(n=5))
        await changed.run_until_idle()
        await changed.manage("large").replay("beginning", 1)
        first, *others = await traced(changed, "order-1", "large")
        assert (first.state, first.note) == ("not reached", "it was handled before, and a replay brings it again")
        for _ in range(2):
            assert [(each.state, each.definition) for each in others] == [
                ("filtered", 1),
                ("done", 1),
                ("done", 2),
            ]
            await changed.run_until_idle()
            first, *others = await traced(changed, "order-1", "large")
        assert (first.state, first.definition, first.note) == ("done", 2, None)


# Definitions that changed


def selecting(mp: Milepost, where: str, handler: Any = None, **options: Any) -> Milepost:
    """A program whose subscription has two lanes and this filter."""

    async def handle(message: Message[Any]) -> None: ...

    mp.subscription("large", **{"where": where, "lanes": 2, **options})(handler or handle)
    return mp


async def test_the_filter_that_was_in_force_then_decides(make_mp: MakeMilepost) -> None:
    async with selecting(make_mp(), "n >= 10") as old:
        await old.append("order-1", [new(n=5), new(n=50)])
        await old.run_until_idle()
    async with selecting(make_mp(), "n < 10") as changed:
        await changed.append("order-1", [new(n=5), new(n=50)])
        before = await traced(changed, "order-1", "large")
        assert [each.state for each in before] == ["filtered", "done", "filtered", "not reached"]
        await changed.run_until_idle()
        after = await traced(changed, "order-1", "large")
    assert [each.state for each in after] == ["filtered", "done", "done", "filtered"]
    assert [each.definition for each in after] == [1, 1, 2, 2]
    assert [each.note for each in after] == [None] * 4
    assert str(after[0]) == "filtered out: n >= 10 is false (n is 5)"
    assert str(after[3]) == "filtered out: n < 10 is false (n is 50)"


async def test_of_a_message_that_is_not_reached_the_newest_definition_decides(make_mp: MakeMilepost) -> None:
    async with selecting(make_mp(), "n >= 10", lanes=1) as old:
        await old.run_until_idle()
        await old.append("order-1", [new("slow", n=1), new(n=5), new(n=50)])
        assert await states(old, "order-1", "large") == ["filtered", "filtered", "not reached"]
    handler = Blocking()
    async with selecting(make_mp(), "n < 10", handler.__call__, lanes=1, window=1) as changed:
        async with changed.running(grace=0):
            await handler.begun.get()
            found = await traced(changed, "order-1", "large")
            assert [each.state for each in found] == ["in flight", "not reached", "filtered"]
            assert [each.reached for each in found] == [True, False, False]
            handler.may_end.set()
            await until_states(changed, "order-1", "large", ["done", "done", "filtered"])


async def test_each_lane_left_a_definition_where_it_stood(make_mp: MakeMilepost) -> None:
    """One lane was held up by a slow message when the filter changed, and handled the rest by the new one."""
    quick, held = streams(2)
    handler = Blocking()
    async with selecting(make_mp(), "n < 10", handler.__call__, window=1) as old:
        await old.append(held, [new("slow", n=1), new(n=2), new(n=50)])
        await old.append(quick, [new(n=1), new(n=2), new(n=50)])
        async with old.running(grace=0):
            await handler.begun.get()
            await until(partial(_has_passed, old, quick))
            assert await states(old, quick, "large") == ["done", "done", "filtered"]
        [[positions]] = await execute(
            old, 'select array_agg(distinct "position") from {0}.cursors where epoch is not null and released'
        )
        assert len(positions) == 2, "the lanes are to stand apart"
    async with selecting(make_mp(), "n >= 2") as changed:
        await changed.run_until_idle()
        by_old = await traced(changed, quick, "large")
        by_new = await traced(changed, held, "large")
    assert [(each.state, each.definition) for each in by_old] == [("done", 1), ("done", 1), ("filtered", 1)]
    assert [(each.state, each.definition) for each in by_new] == [("filtered", 2), ("done", 2), ("done", 2)]
    assert [each.note for each in by_old + by_new] == [None] * 6


async def test_what_was_settled_ahead_when_the_filter_changed_was_decided_by_the_old_one(
    make_mp: MakeMilepost,
) -> None:
    handler = Blocking()
    async with selecting(make_mp(), "n < 10", handler.__call__, lanes=1) as old:
        await old.append("order-1", new("slow", n=1))
        await old.append("order-2", [new(n=1), new(n=50), new(n=2)])
        async with old.running(grace=0):
            await handler.begun.get()
            await until_states(old, "order-2", "large", ["done", "filtered", "done"])
    seen: list[int] = []

    async def see(message: Message[Any]) -> None:
        seen.append(message.position)

    async with selecting(make_mp(), "n >= 1", see, lanes=1) as changed:
        await changed.append("order-2", new(n=50))
        await changed.run_until_idle()
        assert seen == [1, 5]
        [first] = await traced(changed, "order-1", "large")
        found = [first, *await traced(changed, "order-2", "large")]
        assert [(each.state, each.definition, each.note) for each in found] == [
            ("done", 2, None),
            ("done", 1, None),
            ("filtered", 1, None),
            ("done", 1, None),
            ("done", 2, None),
        ]
        # After a day the revisions of then are gone.
        await execute(
            changed, "delete from {0}.cursors c where revision < (select max(revision) from {0}.cursors)"
        )
        assert found == [first, *await traced(changed, "order-2", "large")]


async def test_what_an_owner_writes_while_another_filter_is_declared_was_decided_by_the_old_one(
    make_mp: MakeMilepost, database_url: str
) -> None:
    async with selecting(make_mp(), "n < 10", lanes=1) as old:
        await old.run_until_idle()
        await old.append("order-1", [new(n=1), new(n=50)])
        async with await psycopg.AsyncConnection.connect(database_url) as owner:
            # Its write is under way when the other program starts.
            await owner.execute(
                qualified(
                    """
                    insert into {0}.cursors (subscription, lane, revision, epoch, released, "position")
                    select subscription, lane, revision + 1, epoch, released, 2
                    from {0}.cursors order by revision desc limit 1
                    """,
                    old,
                ).encode()
            )
            async with selecting(make_mp(), "n > 10", lanes=1) as changed:
                declaring = asyncio.create_task(changed.run_until_idle())
                await until_somebody_waits_for(owner)
                await owner.commit()
                await declaring
                found = await traced(changed, "order-1", "large")
    assert [(each.state, each.definition) for each in found] == [("done", 1), ("filtered", 1)]


async def test_what_was_there_when_it_began_at_now_is_before_its_start(mp: Milepost) -> None:
    """Also what was visible above the horizon then, which is settled ahead."""
    async with await psycopg.AsyncConnection.connect(mp.url) as connection:
        await mp.append("order-1", new(), connection=connection)
        await mp.append("order-2", new())

        @mp.subscription("new", start="now")
        async def handle(message: Message[Any]) -> None: ...

        await mp.run_until_idle()
        await connection.commit()
    await mp.append("order-2", new())
    await mp.run_until_idle()
    assert await states(mp, "order-1", "new") == ["done"]
    found = await traced(mp, "order-2", "new")
    assert [(each.state, each.note) for each in found] == [("before its start", None), ("done", None)]


async def test_of_a_subscription_that_nobody_has_run_everything_passed_is_before_its_start(mp: Milepost) -> None:
    async with await psycopg.AsyncConnection.connect(mp.url) as connection:
        await mp.append("order-1", new(), connection=connection)
        await mp.append("order-2", new())
        await mp.create_subscription("new", start="now")
        await connection.commit()
    [held] = await traced(mp, "order-1", "new")
    [there] = await traced(mp, "order-2", "new")
    assert (held.state, there.state) == ("not reached", "before its start")
    assert str(there) == "before its start: it was there when the subscription began with what was new"


async def test_another_order_makes_other_lanes(make_mp: MakeMilepost) -> None:
    """Nobody was left who knew the old order: all began where the lowest lane was, and is by the new one."""
    async with lanes_apart(make_mp) as old:
        lowest = min(lane.position for lane in (await old.manage("functional").info()).lanes)
    async with make_mp() as changed:

        @changed.subscription("functional", types=["placed"], lanes=4)
        async def handle(message: Message[Any]) -> None: ...

        async with changed.running():
            await until_states(changed, "order-1", "functional", ["done"] * 41)
        for _ in range(2):
            found = await traced(changed, "order-1", "functional")
            assert [each.definition for each in found] == [
                1 if each.message.position <= lowest else 2 for each in found
            ]
            # After a day nobody may know when lanes were taken.
            await execute(changed, "update {}.cursors set taken = null")


async def test_other_lanes(make_mp: MakeMilepost) -> None:
    for lanes in (3, 5, 2):
        async with selecting(make_mp(), f"n != {lanes}", lanes=lanes) as mp:
            await mp.append("order-1", [new(n=n) for n in range(6)])
            async with mp.running():
                await until(partial(_has_lanes, mp, lanes))
                await until(partial(_has_passed, mp, "order-1"))
                found = await until_states(mp, "order-1", "large", states_of(lanes))
    assert [each.note for each in found] == [None] * 18


async def _has_lanes(mp: Milepost, lanes: int) -> bool:
    return len((await mp.manage("large").info()).lanes) == lanes


async def _has_passed(mp: Milepost, stream: str) -> bool:
    """What its lane has not passed, and is said to be filtered, is for the next definition to judge."""
    return all(each.reached for each in await traced(mp, stream, "large"))


def states_of(last: int) -> list[str]:
    """Of six messages for each number of lanes so far, the one of that number was filtered."""
    so_far = [3, 5, 2][: [3, 5, 2].index(last) + 1]
    return ["filtered" if n == lanes else "done" for lanes in so_far for n in range(6)]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=MORE) for seed in range(1, 8))])
async def test_what_it_says_is_done_is_what_was_handled(make_mp: MakeMilepost, seed: int) -> None:
    """Programs with one filter after the other, each of which ends while some of its messages hold up others."""
    random = Random(seed)
    handled: set[int] = set()
    rounds = random.randint(2, 5)
    for number in range(rounds):
        is_last = number == rounds - 1
        begun = asyncio.Event()

        async def handle(
            message: Message[Any], number: int = number, is_last: bool = is_last, begun: asyncio.Event = begun
        ) -> None:
            if message.data == number and not is_last:
                begun.set()
                await asyncio.Event().wait()
            handled.add(message.position)

        where = f"n % {random.randint(2, 4)} {random.choice(['==', '!='])} {random.randint(0, 2)}"
        async with selecting(make_mp(), where, handle, window=random.randint(1, 5), lanes=3) as mp:
            for _ in range(40):
                stream = f"order-{random.randint(1, 9)}"
                await mp.append(stream, new(random.choice([None] * 15 + [number]), n=random.randint(0, 20)))
            if is_last:
                await mp.run_until_idle()
            else:
                async with mp.running(grace=0):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(random.choice([0.1, 0.6])):
                            await begun.wait()
                            await asyncio.sleep(random.choice([0, 0.05, 0.3]))
    async with make_mp() as mp:
        found = [each for n in range(1, 10) for each in await traced(mp, f"order-{n}", "large")]
    assert len(found) == 40 * rounds
    assert {each.state for each in found} == {"done", "filtered"}
    assert [each.note for each in found if each.note] == []
    assert {each.message.position for each in found if each.state == "done"} == handled


@pytest.mark.shard("variants", fast=["None", "order2"])
@pytest.mark.parametrize("order", [None, by_correlation, by_property("customer")])
async def test_orders_that_are_not_the_streams(mp: Milepost, order: Any) -> None:
    handler = Blocking()
    mp.subscription("ordered", ordered_by=order, lanes=16, window=1)(handler.__call__)
    for n in range(20):
        message = NewMessage(
            "placed", "slow" if n == 7 else None, properties={"customer": n}, metadata={"correlation_id": f"c{n}"}
        )
        await mp.append("order-1", message)
    async with mp.running(grace=0):
        await handler.begun.get()
        while True:
            found = await traced(mp, "order-1", "ordered")
            if all(each.state == "done" for each in found if each.lane != found[7].lane):
                break
            await asyncio.sleep(0.02)
        assert found[7].state == "in flight"
        handler.may_end.set()
        await until_states(mp, "order-1", "ordered", ["done"] * 20)


async def test_a_definition_that_another_version_wrote_is_not_guessed_at(mp: Milepost) -> None:
    @mp.subscription("new", lanes=1)
    async def handle(message: Message[Any]) -> None: ...

    await mp.append("order-1", new())
    await mp.run_until_idle()
    await mp.append("order-1", new())
    await execute(mp, 'update {}.definitions set selects = \'{{"moon":"full"}}\'')
    passed, ahead = await traced(mp, "order-1", "new")
    assert (passed.state, ahead.state) == ("unsure", "not reached")
    assert "another version of Milepost" in str(passed)
    assert "another version of Milepost" in str(ahead)


async def test_a_filter_whose_stored_text_is_longer_than_a_filter_may_be(mp: Milepost) -> None:
    where = "||".join(f"a{n}==1" for n in range(1, 128))
    where += f"||{'b' * (4090 - len(where))}=1"

    @mp.subscription("long", where=where)
    async def handle(message: Message[Any]) -> None: ...

    await mp.append("order-1", [new(a7=1), new(a1=1), new(a1=0)])
    await mp.run_until_idle()
    assert await states(mp, "order-1", "long") == ["filtered", "done", "filtered"]


# Orders by a function


def by_length(message: Message[Any]) -> str:
    return str(message.data)


def program(mp: Milepost, handler: Blocking, version: int = 1) -> Milepost:
    order = by_function(by_length, version=version)
    mp.subscription("functional", ordered_by=order, lanes=4, window=1)(handler.__call__)
    return mp


@asynccontextmanager
async def lanes_apart(make_mp: MakeMilepost) -> AsyncIterator[Milepost]:
    """A program of which one lane is held up at its second message, and the others are at the head."""
    handler = Blocking()
    async with program(make_mp(), handler) as mp:
        await mp.append("order-1", [new(n) for n in range(20)] + [new("slow")] + [new(n) for n in range(20)])
        async with mp.running(grace=0):
            await handler.begun.get()
            await until(lambda: _stands_apart(mp))
            yield mp


async def _stands_apart(mp: Milepost) -> bool:
    positions = sorted(lane.position for lane in (await mp.manage("functional").info()).lanes)
    return positions[0] >= 20 and positions[1:] == [41, 41, 41]


async def test_the_program_knows_the_function(make_mp: MakeMilepost) -> None:
    async with lanes_apart(make_mp) as mp:
        lane = bucket_of('"slow"') % 4
        for each in await traced(mp, "order-1", "functional"):
            in_lane = (
                bucket_of(f'"{"slow" if each.message.version == 21 else (each.message.version - 1) % 21}"') % 4
            )
            passed = in_lane != lane or each.message.version <= 20
            behind = "in flight" if each.message.version == 21 else "not reached"
            assert each.state == ("done" if passed else behind)
            assert each.lane == in_lane
        async with program(make_mp(group="elsewhere"), Blocking()) as other:
            assert "unsure" in await states(other, "order-1", "default/functional")
        async with program(make_mp(), Blocking(), version=2) as newer:
            assert "unsure" in await states(newer, "order-1", "functional")


async def test_whoever_lacks_the_function_says_between_which_cursors_it_is_unsure(make_mp: MakeMilepost) -> None:
    async with lanes_apart(make_mp) as mp, make_mp() as other:
        low = min(lane.position for lane in (await mp.manage("functional").info()).lanes)
        for each in await traced(other, "order-1", "functional"):
            # Its worker says what it has in hand.
            ahead = "in flight" if each.message.version == 21 else "unsure"
            assert each.state == ("done" if each.message.position <= low else ahead)
        assert f"lanes stand between positions {low} and 41" in str(each)


async def test_a_row_needs_no_function(make_mp: MakeMilepost) -> None:
    def order(message: Message[Any]) -> str:
        raise ValueError("no key")

    async with make_mp() as mp:

        @mp.subscription("functional", ordered_by=by_function(order), lanes=4)
        async def handle(message: Message[Any]) -> None: ...

        await mp.append("order-1", [new(), new()])
        await mp.run_until_idle()
        assert await states(mp, "order-1", "functional") == ["parked", "waiting"]
    async with make_mp() as other:
        assert await states(other, "order-1", "functional") == ["parked", "waiting"]


# Finding


async def test_a_message_is_found_by_its_id(mp: Milepost) -> None:
    @mp.subscription("all")
    async def handle(message: Message[Any]) -> None: ...

    id_ = uuid4()
    await mp.append("order-1", [new(), NewMessage("placed", id=id_)])
    await mp.append("order-2", NewMessage("placed", id=id_))
    await mp.run_until_idle()
    for given in (id_, str(id_), id_.hex):
        trace = await mp.trace(given)
        assert [(each.stream, each.version) for each in trace.messages] == [("order-1", 2), ("order-2", 1)]
        assert [each.state for each in trace] == ["done", "done"]
        assert trace.before_version is None
    assert (await mp.trace(uuid4())).messages == ()
    assert (await mp.trace("order-3")).messages == ()
    await mp.append(str(id_), new())
    assert [each.stream for each in (await mp.trace(str(id_))).messages] == [str(id_)]


async def test_the_newest_come_last_and_older_ones_by_version(mp: Milepost) -> None:
    @mp.subscription("all")
    async def handle(message: Message[Any]) -> None: ...

    await mp.append("order-1", [new()] * 25)
    await mp.run_until_idle()
    seen: list[int] = []
    before: int | None = None
    while True:
        page = await mp.trace("order-1", limit=10, before_version=before)
        seen[:0] = [each.message.version for each in page]
        before = page.before_version
        if before is None:
            break
    assert seen == list(range(1, 26))
    assert [each.version for each in (await mp.trace("order-1", limit=2)).messages] == [24, 25]
    assert len((await mp.trace("order-1")).messages) == 25
    wrong: list[dict[str, Any]] = [{"limit": 0}, {"limit": 1001}, {"before_version": 0}]
    for options in wrong:
        with pytest.raises(InvalidMessage):
            await mp.trace("order-1", **options)
    with pytest.raises(InvalidMessage):
        await mp.trace("")


async def test_some_subscriptions_only(make_mp: MakeMilepost) -> None:
    for group in ("billing", "shipping"):
        async with make_mp(group=group) as mp:
            for name in ("one", "two"):

                @mp.subscription(name)
                async def handle(message: Message[Any]) -> None: ...

            await mp.run_until_idle()
            await mp.append("order-1", new())

    async def addresses(**options: Any) -> list[str]:
        return [each.address for each in await mp.trace("order-1", limit=1, **options)]

    async with make_mp() as mp:
        both = ["billing/one", "billing/two", "shipping/one", "shipping/two"]
        assert await addresses() == both
        assert await addresses(group="billing") == both[:2]
        assert await addresses(subscription="one") == both[::2]
        assert await addresses(subscription="billing/two") == [both[1]]
        with pytest.raises(UnknownSubscription, match="'billing/tow': did you mean 'billing/two'"):
            await addresses(subscription="billing/tow")
        with pytest.raises(UnknownSubscription):
            await addresses(group="nowhere")


async def test_nobody_follows(mp: Milepost) -> None:
    await mp.append("order-1", new())
    trace = await mp.trace("order-1")
    assert (len(trace.messages), list(trace)) == (1, [])


async def test_progress_in_a_second_database_is_traced_there(make_mp: MakeMilepost, second_url: str) -> None:
    async with make_mp(progress=second_url) as mp:

        @mp.subscription("odd")
        async def handle(message: Message[Any]) -> None:
            if message.data == "odd":
                raise Park("odd")

        await mp.append("order-1", [new(), new("odd"), new()])
        await mp.run_until_idle()
        assert await states(mp, "order-1", "odd") == ["done", "parked", "waiting"]


async def test_progress_outside_of_postgresql_cannot_be_traced(make_mp: MakeMilepost) -> None:
    async with make_mp(progress=MemoryProgress()) as mp:
        with pytest.raises(MilepostError, match="kept outside of PostgreSQL"):
            await mp.trace("order-1")


def test_from_code_that_is_not_async(make_mp: MakeMilepost) -> None:
    mp = make_mp()

    @mp.subscription("plain")
    def handle(message: Message[Any]) -> None: ...

    with mp.sync:
        mp.sync.append("order-1", new())
        mp.sync.run_until_idle()
        assert [each.state for each in mp.sync.trace("order-1")] == ["done"]


# Cost


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that are run from now on."""
    seen: list[str] = []
    fetch = pool.fetch_rows

    async def counting(connection: Any, statement: Any, parameters: Any, seconds: Any = None) -> Any:
        seen.append(statement)
        return await fetch(connection, statement, parameters, seconds)

    monkeypatch.setattr(pool, "fetch_rows", counting)
    return seen


async def test_it_takes_the_same_few_statements_for_a_hundred_messages(
    mp: Milepost, statements: list[str]
) -> None:
    @mp.subscription("odd", lanes=1)
    async def handle(message: Message[Any]) -> None:
        if message.data == "odd":
            raise Park("odd")

    @mp.subscription("large", where="n > 3")
    async def large(message: Message[Any]) -> None: ...

    counts = []
    for extra in (1, 100):
        await mp.append("order-1", [new(), new("odd"), *[new()] * extra])
        await mp.run_until_idle()
        await mp.append("order-1", new())
        statements.clear()
        assert {each.state for each in await mp.trace("order-1")} >= {"waiting", "filtered", "not reached"}
        counts.append(len([text for text in statements if "sample" not in text]))
    assert counts[0] == counts[1] <= 10


FILL = """
    insert into {0}.messages
        (stream_id, version, category_hash, bucket, size, id, type, data, properties, metadata)
    select stream_id, n, category_hash, bucket, size, gen_random_uuid(), type, data, properties, metadata
    from (select * from {0}.messages where "position" = 1) m, generate_series(2, %(count)s::bigint) n
"""
FILL_ROWS = """
    insert into {0}.deliveries
        (subscription, "position", lane, attempts, total, size, revision, since, state, key, reason)
    select 1, n, 0, 1, 1, 100, 1, now(), case when n %% 100 = 0 then 'parked' else 'waiting' end,
           'order-' || n / 1000, 'odd'
    from generate_series(1, %(count)s::bigint) n
"""
STATEMENTS: dict[str, tuple[list[str], str]] = {
    "trace_rows": (
        ["subscriptions", "positions"],
        "array[1, 2, 3]::bigint[], array[5, 5000, 49999, 10]::bigint[]",
    ),
    "trace_keys": (
        ["subscriptions", "lanes", "keys", "positions", "most", "shown"],
        "array[1, 1]::bigint[], array[0, 0]::integer[], array['order-3', 'order-7']::text[], "
        "array[3500, 7900]::bigint[], 1000, 5",
    ),
    "trace_unsettled_at": (["subscription", "positions"], "1, array[5, 5000, 49999, 10]::bigint[]"),
    "trace_lowest_of_key": (["subscription", "lane", "key"], "1, 0, 'order-3'"),
    "version_up_to": (["stream", "position"], "'order-1', 40000"),
    "streams_at": (["positions"], "array[5, 5000, 49999, 10]::bigint[]"),
}


async def test_its_statements_look_at_a_few_blocks_also_by_plans_of_when_there_was_nothing(mp: Milepost) -> None:
    await mp.append("order-1", new())
    own = Statements(mp.settings["schema"].value, "milepost.progress.postgres")
    async with await psycopg.AsyncConnection.connect(mp.url, autocommit=True) as connection:
        await connection.execute("set plan_cache_mode = force_generic_plan")
        for name, (parameters, values) in STATEMENTS.items():
            text: Any = (own if name.startswith("trace") else mp.log.statements).get(name)
            for number, parameter in enumerate(parameters, start=1):
                text = text.replace(f"%({parameter})s", f"${number}")
            await connection.execute(f"prepare {name} as {text}".encode())
            await connection.execute(f"execute {name} ({values})".encode())
        await execute(mp, FILL, count=50_000)
        await execute(mp, FILL_ROWS, count=50_000)
        for name, (_, values) in STATEMENTS.items():
            cursor = await connection.execute(
                f"explain (analyze, buffers, format json) execute {name} ({values})".encode()
            )
            row = await cursor.fetchone()
            assert row is not None
            plan = row[0][0]["Plan"]
            assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= 200, (name, plan)
