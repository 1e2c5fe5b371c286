"""`mp.sync.consumer`: consumers for code that is not async."""

import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from milepost import ConsumerClosed, Lost, Milepost, MilepostError, NewMessage, Park, Retry, Route, Skip
from milepost.engine.consumers.consumer import Consumer
from milepost.engine.consumers.delivery import Delivery
from milepost.engine.consumers.sync import SyncConsumer, SyncDelivery
from milepost.sync import SyncMilepost
from support import MakeMilepost

PROGRAM = Path(__file__).with_name("sync_program.py")


@pytest.fixture
def sync(make_mp: MakeMilepost) -> Iterator[SyncMilepost]:
    """One with a subscription for consumers."""
    sync = make_mp().sync
    sync.create_subscription("shipping", retry=Retry(attempts=2, delay=0, jitter=0))
    yield sync
    sync.close()


def orders(sync: SyncMilepost, count: int) -> None:
    for n in range(count):
        sync.append(f"order-{n}", NewMessage("order.placed", {"n": n}, properties={"n": n}))


def take(consumer: SyncConsumer, count: int) -> list[SyncDelivery]:
    return list(islice(consumer, count))


def parked(sync: SyncMilepost) -> list[tuple[int, str]]:
    return [(each.position, each.reason) for each in sync.manage("shipping").deliveries(state="parked")]


# -- Taking and settling


def test_a_plain_loop(sync: SyncMilepost) -> None:
    orders(sync, 3)
    seen: list[tuple[int, int]] = []
    with sync.consumer("shipping") as consumer:
        for delivery in consumer:
            with delivery as message:
                seen.append((message.position, message.data["n"]))
            if len(seen) == 3:
                consumer.drain()
    assert seen == [(1, 0), (2, 1), (3, 2)]
    assert consumer.closed == "drained"
    info = sync.manage("shipping").info()
    assert (info.lag.positions, info.retrying, info.parked) == (0, 0, 0)


def test_a_block_that_raises(sync: SyncMilepost) -> None:
    orders(sync, 4)
    raised: dict[int, Exception] = {2: ZeroDivisionError("whatever"), 3: Park("no address"), 4: Skip("a test")}
    seen: list[tuple[int, int]] = []
    with sync.consumer("shipping") as consumer:
        for delivery in consumer:
            seen.append((delivery.position, delivery.attempt))
            with delivery:
                if error := raised.get(delivery.position):
                    raise error
            if len(seen) == 5:
                consumer.drain()
    assert sorted(seen) == [(1, 1), (2, 1), (2, 2), (3, 1), (4, 1)]
    assert sorted(parked(sync)) == [(2, "ZeroDivisionError: whatever"), (3, "no address")]


def test_each_way_to_settle(sync: SyncMilepost) -> None:
    orders(sync, 6)
    with sync.consumer("shipping") as consumer:
        one, two, three, four, five, six = take(consumer, 6)
        one.extend(60)
        one.ack()
        two.retry(after=0, reason="later")
        three.park("no address")
        four.skip("a test")
        with pytest.raises(Lost, match="was settled before"):
            one.ack()
        [again] = take(consumer, 1)
        assert (again.position, again.attempt, again.message.data) == (2, 2, {"n": 1})
        result = consumer.settle(ack=[again, one], retry=[six], reason="all at once")
        assert (result.moved, result.refused) == ((2, 6), (1,))
        assert repr(five) == "Delivery(position=5, attempt=1)"
        five.stop("not me")
        with pytest.raises(ConsumerClosed) as closed:
            next(consumer)
        assert closed.value.reason == "stopped"
    assert parked(sync) == [(3, "no address")]
    with sync.consumer("shipping") as consumer:
        assert [(each.position, each.attempt) for each in take(consumer, 2)] == [(5, 2), (6, 2)]


def test_in_lists(sync: SyncMilepost) -> None:
    orders(sync, 10)
    seen: list[int] = []
    with sync.consumer("shipping") as consumer:
        for batch in consumer.batches(limit=4):
            assert len(batch) <= 4
            seen += consumer.settle(ack=batch).moved
            if len(seen) == 10:
                consumer.drain()
        with pytest.raises(ValueError, match="at least 1"):
            next(consumer.batches(0))
    assert seen == list(range(1, 11))


def test_several_threads_share_one_consumer(sync: SyncMilepost) -> None:
    orders(sync, 100)
    seen: list[int] = []
    threads: set[int] = set()
    together = threading.Barrier(4)

    def work(consumer: SyncConsumer) -> None:
        for nth, delivery in enumerate(consumer):
            with delivery as message:
                if nth == 0:
                    together.wait(30)
                threads.add(threading.get_ident())
                seen.append(message.position)
            if len(seen) == 100:
                consumer.drain()

    with sync.consumer("shipping") as consumer, ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work, consumer) for _ in range(4)]:
            future.result(60)
    assert sorted(seen) == list(range(1, 101))
    assert len(threads) == 4


# -- Changing


def test_routes_change(sync: SyncMilepost) -> None:
    with sync.consumer("shipping", where="n < 2", priority=5, capacity=10) as consumer:
        orders(sync, 4)
        assert [each.position for each in take(consumer, 2)] == [1, 2]
        more = Route("n == 3", name="three")
        consumer.add(more)
        [three] = take(consumer, 1)
        assert (three.position, three.route) == (4, "three")
        consumer.remove(more)
        assert [route.priority for route in consumer.routes] == [5]
        consumer.configure(where="n == 2", capacity=20)
        assert [each.position for each in take(consumer, 1)] == [3]
        assert (consumer.in_flight, consumer.statistics().delivered) == (4, 4)
        with pytest.raises(TypeError, match="did you mean 'capacity'"):
            consumer.configure(capasity=3)


def test_leaving_gives_back_and_an_error_counts(sync: SyncMilepost) -> None:
    orders(sync, 2)
    with sync.consumer("shipping") as consumer:
        take(consumer, 2)
    with pytest.raises(ZeroDivisionError), sync.consumer("shipping") as consumer:
        assert [each.attempt for each in take(consumer, 2)] == [1, 1]
        raise ZeroDivisionError
    with sync.consumer("shipping") as consumer:
        assert [each.attempt for each in take(consumer, 2)] == [2, 2]


def test_standing_by(sync: SyncMilepost, make_mp: MakeMilepost) -> None:
    other = make_mp().sync
    orders(sync, 1)
    with other, sync.consumer("shipping") as owner, other.consumer("shipping") as second:
        assert (owner.standby, second.standby) == (False, True)
        owner.__exit__(None, None, None)
        assert next(second).position == 1
        assert not second.standby


# -- Ending


def test_closing_ends_the_loop_of_another_thread(sync: SyncMilepost) -> None:
    orders(sync, 1)
    got: list[SyncDelivery] = []
    began = threading.Event()

    def work() -> str:
        with sync.consumer("shipping") as consumer:
            got.append(next(consumer))
            began.set()
            with pytest.raises(ConsumerClosed) as closed:
                next(consumer)
            return closed.value.reason

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        assert began.wait(30)
        sync.close()
        assert working.result(30) == "closed"
    with pytest.raises(Lost, match="no longer this consumer's, which has ended: closed"):
        got[0].ack()
    with sync.consumer("shipping") as consumer:
        assert next(consumer).attempt == 1


def test_outside_of_a_block(sync: SyncMilepost) -> None:
    with pytest.raises(RuntimeError, match="inside `with`"):
        next(sync.consumer("shipping"))


async def test_in_an_event_loop_it_would_block_it(mp: Milepost) -> None:
    await mp.create_subscription("shipping")
    with pytest.raises(MilepostError, match="would block this event loop"), mp.sync.consumer("shipping"):
        pass


def test_ctrl_c_gives_back_what_it_had(sync: SyncMilepost, database_url: str, schema: str) -> None:
    orders(sync, 2)
    command = [sys.executable, str(PROGRAM), database_url, schema]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "has 2\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30)[0] == "interrupted, left\n"
    with sync.consumer("shipping") as consumer:
        assert [each.attempt for each in take(consumer, 2)] == [1, 1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_has_no_part_in_it(sync: SyncMilepost) -> None:
    orders(sync, 1)
    with sync.consumer("shipping") as consumer:
        child = os.fork()
        if child == 0:
            try:
                next(consumer)
            except MilepostError as error:
                os._exit(7 if "stays in the process" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        next(consumer).ack()


# -- The same as the async ones


@pytest.mark.parametrize(("blocking", "async_"), [(SyncConsumer, Consumer), (SyncDelivery, Delivery)])
def test_every_public_method_has_the_same_parameters(blocking: type[Any], async_: type[Any]) -> None:
    internal = {"close", "lane_routes", "dispatcher", "logger", "wake", "next_batch", "numbers", "statistics_with"}
    internal |= {"pop_unseen", "timeout", "recalls"}
    internal |= {"ack", "extend", "route_of", "settled", "stop", "take", "pop_acked", "why_refused"}
    internal |= {"at_hand", "give_back", "go_on", "gone", "leave", "lose", "more", "suspend", "notify_lost"}
    internal |= {"has_settled", "is_limited", "late", "recall"}
    internal -= set() if blocking is SyncConsumer else set(vars(Delivery))
    names = {name for name in vars(async_) if name[0] != "_"} - internal - {"claim", "is_open", "since", "settled"}
    assert names <= set(vars(blocking))
    for name in names:
        if not isinstance(vars(async_)[name], property):
            given, wanted = (inspect.signature(vars(each)[name]).parameters for each in (blocking, async_))
            assert list(given) == list(wanted), name
