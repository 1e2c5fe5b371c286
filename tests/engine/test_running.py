"""Subscriptions that run: on a real PostgreSQL, from append to handler."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from milepost import Message, Milepost, NewMessage, Transaction, by_function, by_property
from milepost.dispatch import Retry
from milepost.engine.declare.context import Context
from milepost.engine.declare.outcomes import Failed, Park, RetryLater, Skip
from milepost.engine.handlers import slots
from milepost.engine.handlers.settler import RunTally
from milepost.engine.handlers.slots import Slot
from milepost.engine.lanes import balancer
from milepost.errors import MilepostError
from support import MakeMilepost, qualified

SOON = Retry(attempts=3, delay=0.01, jitter=0)


class Crowd:
    """Calls of a handler that wait for each other: none ends before so many are there at once."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._complete = asyncio.Event()
        self._here = 0
        self.most = 0

    async def join(self) -> None:
        self._here += 1
        self.most = max(self.most, self._here)
        if self._here == self._size:
            self._complete.set()
        await self._complete.wait()
        # One more than may be would come now.
        for _ in range(20):
            await asyncio.sleep(0)
        self._here -= 1


async def rows(mp: Milepost) -> list[tuple[Any, ...]]:
    """What is stored of messages that need attention: position, state, attempts, reason."""
    statement = qualified('select "position", state, attempts, reason from {}.deliveries order by 1', mp)
    return list(await mp.log.database.execute(statement, {}))


async def fill(mp: Milepost, count: int, streams: int = 5) -> None:
    for number in range(count):
        await mp.append(f"order-{number % streams}", NewMessage("placed", number, properties={"n": number}))


async def test_every_matching_message_is_handled_once(mp: Milepost) -> None:
    seen = []

    @mp.subscription("all", category="order", where="n >= 10")
    async def handle(message: Message[Any]) -> None:
        seen.append(message.data)

    await fill(mp, 50)
    await mp.append("other-1", NewMessage("placed", 99, properties={"n": 99}))
    report = await mp.run_until_idle()
    assert sorted(seen) == list(range(10, 50))
    assert report["all"].handled == 40
    assert (await mp.run_until_idle())["all"].handled == 0


async def test_the_messages_of_a_stream_are_handled_in_order_and_never_two_at_once(mp: Milepost) -> None:
    seen: dict[str, list[int]] = defaultdict(list)
    running: set[str] = set()

    @mp.subscription("slow", category="order", lanes=3)
    async def handle(message: Message[Any]) -> None:
        assert message.stream not in running
        running.add(message.stream)
        await asyncio.sleep(0)
        running.remove(message.stream)
        seen[message.stream].append(message.version)

    await fill(mp, 200, streams=7)
    await mp.run_until_idle()
    assert len(seen) == 7
    assert all(versions == list(range(1, len(versions) + 1)) for versions in seen.values())


async def test_without_an_order_messages_of_a_stream_run_side_by_side(make_mp: MakeMilepost) -> None:
    mp, crowd = make_mp(concurrency=4), Crowd(4)

    @mp.subscription("unordered", category="order", ordered_by=None, lanes=2)
    async def handle(message: Message[Any]) -> None:
        await crowd.join()

    async with mp:
        await fill(mp, 20, streams=1)
        assert (await mp.run_until_idle())["unordered"].handled == 20
    assert crowd.most == 4


async def test_an_order_by_property_goes_over_streams(mp: Milepost) -> None:
    seen: dict[int, list[int]] = defaultdict(list)

    @mp.subscription("customers", category="order", ordered_by=by_property("customer"))
    async def handle(message: Message[Any]) -> None:
        await asyncio.sleep(0)
        seen[message.data].append(message.position)

    for number in range(60):
        await mp.append(f"order-{number}", NewMessage("placed", number % 3, properties={"customer": number % 3}))
    await mp.run_until_idle()
    assert len(seen) == 3
    assert all(positions == sorted(positions) for positions in seen.values())


async def test_a_function_that_gives_no_key_parks_the_message_under_its_stream(mp: Milepost) -> None:
    seen = []

    def order(message: Message[Any]) -> int:
        return 10 // int(message.data)

    @mp.subscription("partitions", category="order", ordered_by=by_function(order))
    async def handle(message: Message[Any]) -> None:
        seen.append(message.data)

    for number in (5, 0, 2):
        await mp.append(f"order-{number}", NewMessage("placed", number))
    await mp.run_until_idle()
    assert sorted(seen) == [2, 5]
    ((position, state, _, reason),) = await rows(mp)
    assert (position, state) == (2, "parked")
    assert "ZeroDivisionError" in reason


async def test_keys_run_side_by_side_up_to_the_concurrency(make_mp: MakeMilepost) -> None:
    mp, crowd = make_mp(concurrency=4), Crowd(4)

    @mp.subscription("wide", category="order")
    async def handle(message: Message[Any]) -> None:
        await crowd.join()

    async with mp:
        await fill(mp, 40, streams=20)
        await mp.run_until_idle()
    assert crowd.most == 4


async def test_a_payload_is_decoded_and_other_types_pass(mp: Milepost) -> None:
    seen = []

    @mp.message()
    @dataclass
    class Placed:
        order: int

    @mp.subscription("placed", category="order")
    async def handle(event: Placed, context: Context) -> None:
        seen.append((event, context.attempt))

    await mp.append("order-1", [Placed(1), NewMessage("else"), Placed(2)])
    await mp.run_until_idle()
    assert seen == [(Placed(1), 1), (Placed(2), 1)]


async def test_a_plain_function_runs_in_a_thread(mp: Milepost) -> None:
    threads = set()

    @mp.subscription("plain", category="order")
    def handle(message: Message[Any]) -> None:
        threads.add(threading.current_thread())

    await fill(mp, 10)
    assert (await mp.run_until_idle())["plain"].handled == 10
    assert threading.main_thread() not in threads


async def test_a_batch_handler_gets_lists(mp: Milepost) -> None:
    batches = []

    @mp.subscription("batches", category="order", batch=10, lanes=1)
    async def handle(messages: list[Message[Any]]) -> None:
        batches.append(len(messages))

    await fill(mp, 100, streams=100)
    await mp.run_until_idle()
    assert sum(batches) == 100
    assert max(batches) == 10


async def test_a_failed_message_is_tried_again_and_then_parked_with_its_error(mp: Milepost) -> None:
    attempts = []

    @mp.subscription("failing", category="order", retry=SOON)
    async def handle(message: Message[Any], context: Context) -> None:
        attempts.append(context.attempt)
        raise ValueError("no such customer")

    await mp.append("order-1", NewMessage("placed"))
    async with mp.running():
        while not [row for row in await rows(mp) if row[1] == "parked"]:
            await asyncio.sleep(0.01)
    assert attempts == [1, 2, 3]
    assert await rows(mp) == [(1, "parked", 3, "ValueError: no such customer")]


async def test_a_failed_message_holds_its_key_and_no_other(mp: Milepost) -> None:
    seen = []

    @mp.subscription("failing", category="order")
    async def handle(message: Message[Any]) -> None:
        if message.stream == "order-0":
            raise ValueError
        seen.append(message.stream)

    await fill(mp, 20, streams=4)
    report = await mp.run_until_idle(errors="park")
    assert report["failing"].failed == 1
    assert set(seen) == {"order-1", "order-2", "order-3"}
    assert [row[1] for row in await rows(mp)] == ["parked"] + ["waiting"] * 4


async def test_an_error_of_a_handler_is_raised(mp: Milepost) -> None:
    @mp.subscription("failing", category="order")
    async def handle(message: Message[Any]) -> None:
        raise KeyError("what")

    await fill(mp, 1)
    with pytest.raises(KeyError, match="what"):
        await mp.run_until_idle()


@pytest.mark.parametrize("only", ["some", ["some", "some"]])
async def test_one_name_is_enough_and_two_of_them_are_one(mp: Milepost, only: Any) -> None:
    for name in ("some", "other"):

        @mp.subscription(name, category="order")
        async def handle(message: Message[Any]) -> None:
            pass

    await fill(mp, 1)
    async with asyncio.timeout(60):
        report = await mp.run_until_idle(only=only)
    assert {name: tally.handled for name, tally in report.items()} == {"some": 1}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"only": []}, "only: .* wanted .leave it out to run all., not "),
        ({"only": 5}, "only: .* wanted"),
        ({"only": [5]}, "only: .* wanted"),
        ({"grace": "5"}, "grace: a number of seconds, at least 0, is wanted, not '5'"),
        ({"grace": -1}, "grace: a number of seconds"),
        ({"grace": float("nan")}, "grace: a number of seconds"),
    ],
)
async def test_running_refuses_what_it_cannot_mean(mp: Milepost, options: dict[str, Any], problem: str) -> None:
    @mp.subscription("some", category="order")
    async def handle(message: Message[Any]) -> None:
        pass

    with pytest.raises(ValueError, match=f"^{problem}"):
        async with mp.running(**options):
            pytest.fail("it has begun")


@pytest.mark.parametrize(("errors", "hint"), [("prak", r" \(did you mean 'park'\?\)"), (None, ""), ("", "")])
async def test_errors_are_raised_or_parked(mp: Milepost, errors: Any, hint: str) -> None:
    @mp.subscription("some", category="order")
    async def handle(message: Message[Any]) -> None:
        pass

    with pytest.raises(ValueError, match=f'^errors: "raise" or "park" is wanted{hint}, not {errors!r}'):
        await mp.run_until_idle(errors=errors)


async def test_a_run_refuses_what_is_no_grace_time(mp: Milepost) -> None:
    @mp.subscription("some", category="order")
    async def handle(message: Message[Any]) -> None:
        pass

    with pytest.raises(ValueError, match="^grace: a number of seconds"):
        async with asyncio.timeout(60):
            await mp.run(grace="5")  # type: ignore[arg-type]


async def test_a_handler_parks_skips_and_postpones(mp: Milepost) -> None:
    postponed: list[int] = []

    @mp.subscription("choosy", category="order")
    async def handle(message: Message[Any], context: Context) -> None:
        match message.data:
            case 0:
                raise Park("not now")
            case 1:
                raise Skip("never")
            case 2:
                postponed.append(context.attempt)
                if len(postponed) < 3:
                    raise RetryLater(0.01, count=False)

    await fill(mp, 4, streams=4)
    async with mp.running():
        while len(postponed) < 3 or "parked" not in [row[1] for row in await rows(mp)]:
            await asyncio.sleep(0.01)
    assert postponed == [1, 1, 1]
    assert await rows(mp) == [(1, "parked", 1, "not now")]


@pytest.mark.parametrize(("given", "stored"), [("", "gave up after attempt 3"), ("busy", "busy")])
async def test_a_message_that_is_put_off_too_often_is_parked_with_a_reason(
    mp: Milepost, caplog: pytest.LogCaptureFixture, given: str, stored: str
) -> None:
    @mp.subscription("putting off", category="order", retry=SOON)
    async def handle(message: Message[Any]) -> None:
        raise RetryLater(0, reason=given)

    await fill(mp, 1)
    report = await mp.run_until_idle()
    assert await rows(mp) == [(1, "parked", 3, stored)]
    assert report["putting off"] == RunTally(parked=1)
    assert f"parked at attempt 3: {stored}" in caplog.text


async def test_a_batch_is_of_one_handler(mp: Milepost) -> None:
    @mp.message("odd")
    class Odd(msgspec.Struct):
        n: int

    @mp.message("even")
    class Even(msgspec.Struct):
        n: int

    found: dict[type, list[int]] = {Odd: [], Even: []}
    numbers = mp.subscription("numbers", category="number", lanes=1)

    @numbers.on
    async def odd(messages: list[Odd]) -> None:
        found[Odd] += [message.n for message in messages]

    @numbers.on
    async def even(messages: list[Even]) -> None:
        found[Even] += [message.n for message in messages]

    await mp.append_many({f"number-{n}": (Odd if n % 2 else Even)(n) for n in range(50)})
    assert (await mp.run_until_idle())["numbers"].handled == 50
    assert sorted(found[Odd]) == list(range(1, 50, 2))
    assert sorted(found[Even]) == list(range(0, 50, 2))


async def test_a_batch_that_names_positions_of_no_message_of_its_has_failed(mp: Milepost) -> None:
    """A number in the list instead of a position, for instance: nothing of it may count as done."""

    @mp.subscription("batches", category="order", batch=10)
    async def handle(messages: list[Message[Any]]) -> None:
        raise Failed({10**6: ValueError("which?")})

    await fill(mp, 3)
    report = await mp.run_until_idle(errors="park")
    assert (report["batches"].handled, report["batches"].parked) == (0, 3)


async def test_what_a_handler_waits_for_and_is_cancelled_is_its_failure(mp: Milepost) -> None:
    """More often than there are slots: none of them may be lost by it."""

    @mp.subscription("cancelled", category="order", ordered_by=None)
    async def handle(message: Message[Any]) -> None:
        inner = asyncio.create_task(asyncio.sleep(60))
        inner.cancel()
        await inner

    await fill(mp, 40)
    report = await mp.run_until_idle(errors="park")
    assert report["cancelled"].parked == 40


@pytest.mark.shard("variants", fast=["None-CancelledError", "5-StopIteration"])
@pytest.mark.parametrize("error", [asyncio.CancelledError, StopIteration, GeneratorExit])
@pytest.mark.parametrize("batch", [None, 5])
async def test_whatever_a_plain_handler_raises_is_its_failure(
    mp: Milepost, error: type[BaseException], batch: int | None
) -> None:
    if batch is None:

        @mp.subscription("plain", category="order", ordered_by=None)
        def one(message: Message[Any]) -> None:
            raise error

    else:

        @mp.subscription("plain", category="order", ordered_by=None, batch=batch)
        def several(messages: list[Message[Any]]) -> None:
            raise error

    await fill(mp, 30)
    report = await mp.run_until_idle(errors="park")
    assert report["plain"].parked == 30


class Panic(BaseException):
    """As libraries raise it that are not written in Python."""


@pytest.mark.shard("variants", fast=["None-error0", "5-error1"])
@pytest.mark.parametrize("error", [Panic("broken"), BaseExceptionGroup("several", [Panic("it"), SystemExit()])])
@pytest.mark.parametrize("batch", [None, 5])
async def test_what_is_no_exception_is_a_failure_all_the_same(
    mp: Milepost, error: BaseException, batch: int | None
) -> None:
    """It came with the message, and would come again in every worker."""
    if batch is None:

        @mp.subscription("panics", category="order", ordered_by=None)
        async def one(message: Message[Any]) -> None:
            raise error

    else:

        @mp.subscription("panics", category="order", ordered_by=None, batch=batch)
        async def several(messages: list[Message[Any]]) -> None:
            raise error

    await fill(mp, 10)
    report = await mp.run_until_idle(errors="park")
    assert report["panics"].parked == 10


async def test_a_function_to_order_by_that_panics_parks_the_message(mp: Milepost) -> None:
    def key(message: Message[Any]) -> str:
        raise Panic("broken")

    @mp.subscription("panics", category="order", ordered_by=by_function(key))
    async def handle(message: Message[Any]) -> None: ...

    await fill(mp, 3)
    report = await mp.run_until_idle()
    assert report["panics"].parked == 3


async def test_a_batch_says_which_of_it_failed(mp: Milepost) -> None:
    @mp.subscription("batches", category="order", batch=10)
    async def handle(messages: list[Message[Any]]) -> None:
        if odd := {message.position: Park("odd") for message in messages if message.data % 2}:
            raise Failed(odd)

    await fill(mp, 10, streams=10)
    report = await mp.run_until_idle()
    assert report["batches"].handled == 5
    assert [row[1] for row in await rows(mp)] == ["parked"] * 5


async def test_a_payload_that_does_not_fit_is_parked_and_holds_its_key_at_most(mp: Milepost) -> None:
    seen = []

    @mp.message("placed")
    @dataclass
    class Placed:
        order: int

    @mp.subscription("typed", category="order")
    async def handle(event: Placed) -> None:
        seen.append(event.order)

    await mp.append("order-1", NewMessage("placed", {"order": "x"}))
    await mp.append("order-2", NewMessage("placed", {"order": 2}))
    await mp.run_until_idle()
    assert seen == [2]
    ((position, state, _, reason),) = await rows(mp)
    assert (position, state) == (1, "parked")
    assert "order" in reason


async def test_a_handler_that_takes_too_long_has_failed(mp: Milepost) -> None:
    @mp.subscription("slow", category="order", timeout=0.05, retry=Retry.never)
    async def handle(message: Message[Any]) -> None:
        await asyncio.Event().wait()

    await fill(mp, 1)
    async with mp.running():
        while not await rows(mp):
            await asyncio.sleep(0.01)
    assert await rows(mp) == [(1, "parked", 1, "TimedOut: timed out after 0.05 s")]


async def test_a_thread_that_takes_too_long_holds_its_key_until_it_returns(
    mp: Milepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be stopped: another attempt beside it, or the next message, would break the order."""
    began: list[tuple[str, int, int]] = []
    may_end, told, begin, expired = threading.Event(), asyncio.Event(), Slot.begin, Slot.expired

    def first_is_late(slot: Slot, timeout: float) -> None:
        begin(slot, timeout if began else 0.01)

    def noted(slot: Slot) -> bool:
        is_over = expired(slot)
        if is_over:
            told.set()
        return is_over

    monkeypatch.setattr(slots, "OVERDUE_CHECK_SECONDS", (0.01, 0.01))
    monkeypatch.setattr(Slot, "begin", first_is_late)
    monkeypatch.setattr(Slot, "expired", noted)

    @mp.subscription("plain", category="order", lanes=1, timeout=600, retry=Retry(delay=0, jitter=0))
    def handle(message: Message[Any], context: Context) -> None:
        began.append((message.stream, message.version, context.attempt))
        if len(began) == 1:
            may_end.wait(100)

    await mp.append("order-1", [NewMessage("placed")] * 2)
    async with asyncio.timeout(90), mp.running(grace=80):
        try:
            await told.wait()
            await mp.append("order-2", NewMessage("placed"))
            while ("order-2", 1, 1) not in began:
                await asyncio.sleep(0.01)
            assert began == [("order-1", 1, 1), ("order-2", 1, 1)]
            may_end.set()
            while len(began) < 4:
                await asyncio.sleep(0.01)
        finally:
            may_end.set()
    assert began[2:] == [("order-1", 1, 2), ("order-1", 2, 1)]


async def test_new_messages_are_handled_as_they_come(mp: Milepost) -> None:
    arrived = asyncio.Event()

    @mp.subscription("live", category="order", start="now")
    async def handle(message: Message[Any]) -> None:
        assert message.data == "new"
        arrived.set()

    await mp.append("order-1", NewMessage("placed", "old"))
    async with mp.running():
        while not await mp.log.database.execute(qualified("select 1 from {}.cursors", mp), {}):
            await asyncio.sleep(0.01)
        await mp.append("order-1", NewMessage("placed", "new"))
        async with asyncio.timeout(60):
            await arrived.wait()


async def test_what_a_handler_appends_is_handled_too(mp: Milepost) -> None:
    seen = []

    @mp.subscription("chain", category="order")
    async def handle(message: Message[Any]) -> None:
        seen.append(message.data)
        if message.data < 5:
            await mp.append(message.stream, NewMessage("placed", message.data + 1))

    await mp.append("order-1", NewMessage("placed", 1))
    await mp.run_until_idle()
    assert seen == [1, 2, 3, 4, 5]


async def test_several_subscriptions_are_independent(mp: Milepost) -> None:
    seen: dict[str, int] = defaultdict(int)

    @mp.subscription("good", category="order")
    async def good(message: Message[Any]) -> None:
        seen["good"] += 1

    @mp.subscription("bad", category="order")
    async def bad(message: Message[Any]) -> None:
        raise ValueError

    await fill(mp, 30)
    await mp.run_until_idle(errors="park")
    assert seen["good"] == 30


async def test_workers_of_a_group_share_the_lanes_and_handle_each_message_once(
    make_mp: MakeMilepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balancer, "BALANCE_SECONDS", 0.05)
    seen: dict[int, list[int]] = defaultdict(list)
    programs = [make_mp() for _ in range(2)]

    def declare(number: int, mp: Milepost) -> None:
        @mp.subscription("shared", category="order", lanes=8)
        async def handle(message: Message[Any]) -> None:
            seen[number].append(message.position)

    for number, mp in enumerate(programs):
        declare(number, mp)
    one, two = programs
    async with one.running(), two.running():
        held = qualified("select count(distinct owner), count(*) filter (where owner is null) from {}.lanes", one)
        async with asyncio.timeout(60):
            while list(await one.log.database.execute(held, {})) != [(2, 0)]:
                await asyncio.sleep(0.01)
        await fill(one, 100, streams=50)
        async with asyncio.timeout(60):
            while sum(map(len, seen.values())) < 100:
                await asyncio.sleep(0.01)
    assert len(seen) == 2
    assert sorted(seen[0] + seen[1]) == list(range(1, 101))


async def test_run_until_idle_waits_for_what_other_workers_have(make_mp: MakeMilepost) -> None:
    """And for nothing else: lanes that they hold are theirs."""
    seen: list[int] = []

    def program() -> Milepost:
        mp = make_mp()

        @mp.subscription("shared", category="order", lanes=4)
        async def handle(message: Message[Any]) -> None:
            await asyncio.sleep(0.01)
            seen.append(message.position)

        return mp

    async with program() as other, other.running():
        await fill(other, 100, streams=20)
        async with asyncio.timeout(60):
            await program().run_until_idle()
        assert sorted(seen) == list(range(1, 101))


async def test_a_message_without_a_key_is_parked_after_a_restart_too(make_mp: MakeMilepost) -> None:
    """Also one that waited behind another of its stream: the process that read it is gone."""

    def program() -> Milepost:
        mp = make_mp()

        def key(message: Message[Any]) -> str:
            raise ValueError("no customer")

        @mp.subscription("keyless", category="order", ordered_by=by_function(key))
        async def handle(message: Message[Any]) -> None:
            raise AssertionError(message)

        return mp

    async with program() as mp:
        await fill(mp, 3, streams=1)
        await mp.run_until_idle()
        assert [state for _, state, _, _ in await rows(mp)] == ["parked", "waiting", "waiting"]
        skip = """
            update {0}.deliveries set state = 'skipped', due = {0}.clock(), revision = revision + 1
            where position = 1
        """
        await mp.log.database.execute(qualified(skip, mp), {})
    async with program() as mp:
        await mp.run_until_idle()
        assert [state for _, state, _, _ in await rows(mp)] == ["skipped", "parked", "waiting"]


class Mute(Exception):
    """One that cannot say what it is."""

    def __str__(self) -> str:
        raise KeyError("detail")


async def test_an_error_whose_text_cannot_be_had_is_a_failure_as_any_other(mp: Milepost) -> None:
    @mp.subscription("plain", category="order")
    async def handle(message: Message[Any]) -> None:
        raise Mute

    @mp.subscription("once", category="order")
    async def handle_once(message: Message[Any], tx: Transaction) -> None:
        raise Mute

    await mp.append("order-1", NewMessage("t"))
    report = await mp.run_until_idle(errors="park")
    assert {name: tally.parked for name, tally in report.items()} == {"plain": 1, "once": 1}
    for name in report:
        parked = [delivery async for delivery in mp.manage(name).deliveries()]
        assert [delivery.reason for delivery in parked] == ["Mute, whose text cannot be had: KeyError"]


@pytest.mark.parametrize("run", [lambda mp: asyncio.run(mp.run()), lambda mp: mp.sync.run()])
async def test_run_in_a_thread_points_to_running(make_mp: MakeMilepost, run: Callable[[Milepost], None]) -> None:
    """Only the main thread receives signals: elsewhere nothing could end it."""
    own = make_mp()
    with pytest.raises(MilepostError, match=r"async with mp\.running\(\)"):
        await asyncio.to_thread(run, own)
