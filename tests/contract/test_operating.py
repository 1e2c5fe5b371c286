"""Operating subscriptions, by the library and over the network."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from contract.both import Both, order, orders
from engine.test_deliveries import waiting_for_locks
from milepost import (
    AlreadyExists,
    Checkpoint,
    DeclaredInCode,
    FilterError,
    InvalidMessage,
    Message,
    Milepost,
    MilepostError,
    NotHandled,
    NotHandledYet,
    Retry,
    UnknownSubscription,
    by_correlation,
    by_function,
    by_property,
)
from milepost.dispatch import LimitReached
from support import qualified


async def test_creating_with_each_option(both: Both) -> None:
    options: dict[str, Any] = {
        "category": ["order", "stock"],
        "stream": None,
        "types": "order.*",
        "where": "n > 1",
        "start": datetime(2026, 1, 1, tzinfo=UTC),
        "ordered_by": by_property("n"),
        "strategy": "pinned",
        "tracking": "failures",
        "on_park": "block",
        "timeout": 12.5,
        "retry": Retry(attempts=3, delay=1),
        "checkpoint": Checkpoint(seconds=1, messages=5),
        "window": 50,
        "lease": 20,
        "stall_after": 10,
        "max_waiting": 11,
        "max_consumers": 4,
        "max_unrouted": 12,
        "keep_done": 60,
    }
    await both.create_subscription("shipping", **options)
    settings = (await both.manage("shipping").info()).settings
    assert settings is not None
    assert {
        name: settings[name] for name in ("category", "ordered_by", "strategy", "timeout", "max_unrouted")
    } == {
        "category": ["order", "stock"],
        "ordered_by": "property n",
        "strategy": "pinned",
        "timeout": 12.5,
        "max_unrouted": 12,
    }
    assert (settings["retry"]["attempts"], settings["checkpoint"]["messages"]) == (3, 5)
    assert settings["start"].startswith("2026-01-01")


@pytest.mark.parametrize("order_by", ["stream", by_correlation, None])
async def test_each_order(both: Both, order_by: Any) -> None:
    await both.create_subscription("shipping", ordered_by=order_by)
    settings = (await both.manage("shipping").info()).settings
    assert settings is not None
    assert settings["ordered_by"] == {"stream": "stream", None: None}.get(order_by, "correlation")


async def test_if_it_exists(both: Both) -> None:
    await both.create_subscription("shipping", window=10)
    await both.create_subscription("shipping", if_exists="ignore", window=11)
    with pytest.raises(AlreadyExists):
        await both.create_subscription("shipping", if_exists="error")
    settings = (await both.manage("shipping").info()).settings
    assert settings is not None
    assert settings["window"] == 10
    await both.create_subscription("other/shipping")
    assert [f"{info.group}/{info.name}" for info in await both.subscriptions()] == [
        "default/shipping",
        "other/shipping",
    ]


async def test_one_that_is_created_paused_waits_until_it_is_resumed(both: Both) -> None:
    await both.append("order-1", order(1))
    jobs = await both.create_subscription("jobs", tracking="all", paused=True)
    assert (await jobs.info()).status == "paused"
    assert list(await both.pull("jobs")) == []
    await jobs.resume()
    assert [delivery.message.position for delivery in await both.pull("jobs")] == [1]
    # That counts for a new one.
    await both.create_subscription("jobs", tracking="all", paused=True)
    assert (await jobs.info()).status == "running"
    with pytest.raises(ValueError, match="pause it or resume it"):
        await jobs.update(paused=True)
    with pytest.raises(ValueError, match="paused: True or False is wanted"):
        await both.create_subscription("others", paused="no")


async def test_a_start_beyond_the_end_of_the_log_is_refused(both: Both) -> None:
    await both.append("order-1", [order(1), order(2)])
    with pytest.raises(InvalidMessage, match="the log ends at position 2, before 3") as raised:
        await both.create_subscription("shipping", start=3)
    assert raised.value.field == "start"
    assert await both.subscriptions() == []
    await both.create_subscription("shipping", start=2)
    # It has begun: where it would begin does not matter any more.
    await both.create_subscription("shipping", start=3, window=11)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"categroy": "a"}, TypeError, "did you mean 'category'"),
        ({"lanes": 4}, TypeError, "for subscriptions with handlers"),
        ({"timeout": 0}, ValueError, "timeout"),
        ({"strategy": "all"}, ValueError, "strategy"),
        ({"if_exists": "never"}, ValueError, "if_exists"),
        ({"ordered_by": by_function(lambda message: "a")}, ValueError, "cannot be stored"),
        ({"where": "a =="}, FilterError, "expected"),
    ],
)
async def test_what_cannot_be_created(
    both: Both, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        await both.create_subscription("shipping", **options)
    with pytest.raises(ValueError, match="without /"):
        await both.create_subscription("a/b/c")


async def test_updating(both: Both) -> None:
    await both.create_subscription("shipping")
    shipping = both.manage("shipping")
    await shipping.update(where="n > 1", retry=Retry(attempts=2), ordered_by="stream")
    settings = (await shipping.info()).settings
    assert settings is not None
    assert (settings["where"], settings["retry"]["attempts"], settings["ordered_by"]) == ("n > 1", 2, "stream")
    for changes, error in (({}, ValueError), ({"start": "now"}, ValueError), ({"windw": 1}, TypeError)):
        with pytest.raises(error):
            await shipping.update(**changes)


async def test_one_that_a_program_declares(mp: Milepost, both: Both) -> None:
    @mp.subscription("invoices", category="order", retry=Retry.never)
    async def invoice(message: Message[Any]) -> None:
        if message.data["n"] == 1:
            raise ValueError("no invoice")

    await orders(both, 4)
    await mp.run_until_idle(errors="park")
    invoices = both.manage("invoices")
    await invoices.update(concurrency=2)
    with pytest.raises(DeclaredInCode):
        await invoices.update(where="n > 1")
    with pytest.raises(DeclaredInCode):
        await both.create_subscription("invoices")
    with pytest.raises(MilepostError, match="handlers"):
        await both.pull("invoices")
    assert (await invoices.info()).parked == 1
    [parked] = [delivery async for delivery in invoices.deliveries(state="parked")]
    assert parked.message is not None
    assert (parked.message.data, parked.reason, parked.attempts) == ({"n": 1}, "ValueError: no invoice", 1)
    assert "Traceback" in parked.error
    assert await invoices.count_deliveries(reason="INVOICE") == 1
    assert [delivery async for delivery in invoices.deliveries(state=["retrying", "waiting"])] == []

    progress = await invoices.progress("order-1")
    assert (progress.handled, progress.known, progress.lagging) == (0, 1, True)
    await invoices.caught_up(1)
    with pytest.raises(NotHandled) as raised:
        await invoices.caught_up(parked.position)
    assert raised.value.state == "parked"
    assert [(traced.state, traced.reason) for traced in await both.trace("order-1")] == [
        ("parked", "ValueError: no invoice")
    ]
    decided = await invoices.skip([parked.position, 1])
    assert (decided.moved, list(decided.refused)) == (1, [1])
    assert (await invoices.info()).parked == 0


async def test_retrying_by_choice(mp: Milepost, both: Both) -> None:
    @mp.subscription("invoices", category="order", retry=Retry.never)
    async def invoice(message: Message[Any]) -> None:
        raise ValueError("never" if message.data["n"] % 2 else "not now")

    await orders(both, 6, streams=6)
    await mp.run_until_idle(errors="park")
    invoices = both.manage("invoices")
    seen: list[int] = []
    assert (await invoices.retry(all=True, reason="never", limit=2, on_batch=seen.append)).moved == 2
    assert seen[-1] == 2
    assert (await invoices.retry(up_to=3)).moved == 2
    assert (await invoices.retry(all=True, state="retrying")).moved == 4
    assert (await invoices.skip(all=True)).moved == 2
    assert [info.parked for info in await both.subscriptions()] == [0]
    for ask in (invoices.retry(), invoices.retry(all=True, up_to=3)):
        with pytest.raises(TypeError):
            await ask
    with pytest.raises(ValueError, match="state"):
        await invoices.retry(all=True, state="waiting")
    with pytest.raises(ValueError, match="limit"):
        await invoices.retry(all=True, limit=-1)


async def test_deciding_about_a_key(mp: Milepost, both: Both) -> None:
    @mp.subscription("invoices", category="order", retry=Retry.never, on_park="continue")
    async def invoice(message: Message[Any]) -> None:
        raise ValueError("not now")

    await orders(both, 6, streams=3)
    await mp.run_until_idle(errors="park")
    invoices = both.manage("invoices")
    assert [found.position async for found in invoices.deliveries(key="order-1")] == [2, 5]
    assert await invoices.count_deliveries(state="parked", key="order-1") == 2
    assert await invoices.count_deliveries(key="order-1", up_to=4) == 1
    assert (await invoices.retry(up_to=4, key="order-1")).moved == 1
    assert (await invoices.retry(all=True, key="order-1", state="retrying")).moved == 1
    assert (await invoices.skip(all=True, key="order-2", reason="now")).moved == 2
    assert (await invoices.skip(all=True, key="order-9")).moved == 0
    assert {found.position: found.state async for found in invoices.deliveries()} == {
        1: "parked",
        2: "retrying",
        3: "skipped",
        4: "parked",
        5: "parked",
        6: "skipped",
    }
    for ask in (invoices.retry([1], key="order-0"), invoices.skip([1], key="order-0")):
        with pytest.raises(TypeError, match="not with positions"):
            await ask


async def retrying(both: Both, count: int) -> None:
    """So many messages that are retrying, pulled and failed once."""
    await both.create_subscription("shipping", tracking="all", ordered_by=None)
    await orders(both, count)
    await both.settle(retry=await both.pull("shipping", limit=count), after=600)


async def test_deciding_about_the_next_ones(both: Both) -> None:
    """Those that are retrying stay what they are when they are to be tried at once."""
    await retrying(both, 5)
    shipping = both.manage("shipping")
    first = await shipping.retry(all=True, state="retrying", limit=2)
    second = await shipping.retry(all=True, state="retrying", limit=2, after=first.next or 0)
    third = await shipping.skip(all=True, state="retrying", after=second.next or 0)
    assert [(each.moved, each.next) for each in (first, second, third)] == [(2, 2), (2, 4), (1, None)]


async def test_two_who_have_the_same_tried_at_once(mp: Milepost, both: Both) -> None:
    await retrying(both, 5)
    lock = qualified('select from {}.deliveries where "position" = 5 for update', mp)
    async with await psycopg.AsyncConnection.connect(mp.url) as connection:
        await connection.execute(lock.encode())
        retries = [
            asyncio.create_task(both.manage("shipping").retry(all=True, state="retrying")) for _ in range(2)
        ]
        while await waiting_for_locks(mp) < 2:
            await asyncio.sleep(0.01)
        await connection.commit()
    decided = await asyncio.gather(*retries)
    assert sorted((each.moved, len(each.refused)) for each in decided) == [(0, 5), (5, 0)]


async def test_pausing_moving_and_replaying(mp: Milepost, both: Both) -> None:
    handled: list[tuple[int, bool]] = []

    @mp.subscription("invoices", category="order")
    async def invoice(message: Message[Any]) -> None:
        handled.append((message.data["n"], False))

    await orders(both, 5)
    await mp.run_until_idle()
    invoices = both.manage("invoices")
    await invoices.pause()
    assert (await invoices.info()).status == "paused"
    with pytest.raises(NotHandled):
        await invoices.caught_up(await both.append("order-1", order(9)))
    await invoices.resume()
    plan = await invoices.plan_move(2)
    assert (plan.position, plan.again) == (2, 3)
    assert await invoices.move(2) == 0
    await mp.run_until_idle()
    assert len(handled) == 5 + 4
    assert (await invoices.plan_replay(0, 3)).again == 3
    assert await invoices.replay(0, 3) == 3
    await mp.run_until_idle()
    assert len(handled) == 9 + 3
    assert await invoices.move("now") == 0
    assert (await invoices.plan_move("beginning")).again == 6
    assert (await invoices.plan_move(datetime.now(UTC) - timedelta(hours=1))).again == 6
    with pytest.raises(ValueError, match="to"):
        await invoices.move("somewhere")  # type: ignore[arg-type]
    await invoices.delete()
    with pytest.raises(UnknownSubscription):
        await invoices.info()


async def test_what_is_out_is_taken_back_by_force(both: Both) -> None:
    jobs = await both.create_subscription("jobs", tracking="all")
    await orders(both, 4)
    tasks = await both.pull("jobs", limit=2)
    await jobs.pause(force=True)
    assert (await both.settle(ack=tasks)).moved == ()
    await jobs.resume()
    again = await both.pull("jobs", limit=2)
    assert [(each.position, each.attempt) for each in again] == [(1, 1), (2, 1)]
    await jobs.move(2, force=True)
    assert (await both.settle(ack=again)).moved == ()
    assert await jobs.replay("beginning", force=True) == 0
    await jobs.delete(force=True)
    with pytest.raises(UnknownSubscription):
        await jobs.info()


async def test_reading_ones_own_writes(mp: Milepost, both: Both) -> None:
    @mp.subscription("invoices", category="order", retry=Retry(delay=3600))
    async def invoice(message: Message[Any]) -> None:
        if message.data["n"] == 5:
            raise ValueError("later")

    async with mp.running():
        await both.manage("invoices").caught_up(await both.append("order-1", [order(1), order(2)]), timeout=60)
        written = await both.append_many({"order-1": order(3), "order-2": order(4)})
        await both.manage("invoices").caught_up(written, timeout=60)
        with pytest.raises(NotHandledYet) as raised:
            await both.manage("invoices").caught_up(await both.append("order-3", order(5)), timeout=60)
    assert (raised.value.state, raised.value.transient) == ("retrying", True)
    assert isinstance(raised.value, TimeoutError)


async def test_what_is_not_there(both: Both) -> None:
    nothing = both.manage("nothing")
    for ask in (nothing.info(), nothing.pause(), nothing.move(0), nothing.delete(), nothing.retry(all=True)):
        with pytest.raises(UnknownSubscription) as raised:
            await ask
        assert raised.value.name == "default/nothing"
    with pytest.raises(UnknownSubscription):
        await both.trace("order-1", subscription="nothing")


async def test_tracing(both: Both) -> None:
    await both.create_subscription("shipping", category="order", where="n > 1")
    await orders(both, 4, streams=1)
    trace = await both.trace("order-0", limit=2)
    assert [(each.version, each.stream) for each in trace.messages] == [(3, "order-0"), (4, "order-0")]
    assert trace.before_version == 3
    older = await both.trace("order-0", limit=2, before_version=3, subscription="default/shipping")
    assert [each.address for each in older] == ["default/shipping"] * 2
    found = await both.trace(trace.messages[0].id)
    assert [each.message for each in found] == [trace.messages[0]]
    assert "not reached" in [each.state for each in found] or str(found[0])
    with pytest.raises(InvalidMessage):
        await both.trace("order-0", limit=0)


async def test_a_lane_that_reads_no_further(both: Both) -> None:
    await both.create_subscription("shipping", max_unrouted=2, window=10)
    await orders(both, 20)
    shipping = both.manage("shipping")
    async with both.consumer("shipping", where="n == 99"), asyncio.timeout(60):
        while (info := await shipping.info()).status != "stopped":
            await asyncio.sleep(0.02)
        assert info.lanes[0].stopped == LimitReached(limit="max_unrouted", most=2, rows=2, filters=("n == 99",))
        assert info.stopped == str(info.lanes[0].stopped)


async def test_who_holds_the_horizon(both: Both, mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milepost.log.protocol.HOLDER_NAMED_SECONDS", 0.0)
    await both.create_subscription("shipping")
    async with mp.log.database.connection() as holder, holder.transaction():
        await mp.append("order-1", order(1), connection=holder)
        info = await both.manage("shipping").info()
        pid = holder.info.backend_pid
    assert (info.lag.held_positions, info.lag.held_seconds > 0) == (1, True)
    assert info.held_by is not None
    assert (info.held_by.pid, str(info.held_by).partition(" (")[0]) == (pid, f"pid {pid}")
