"""`mp.sync`: the same methods for code that is not async."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any, assert_type

import psycopg
import pytest

from milepost import (
    NOW,
    Appended,
    InvalidMessage,
    Message,
    Milepost,
    MilepostError,
    NewMessage,
    Unavailable,
    WrongVersion,
    sync_bridge,
)
from milepost.message_methods import MessageMethods
from milepost.progress.reports import Node
from milepost.sync import SyncMilepost
from support import MakeMilepost

M = NewMessage("order.placed", {"amount": 3})
CLOSED = r"closed (meanwhile|while it was followed)"


@pytest.fixture
def database_url(embedded_url: str) -> str:
    """One server is enough: nothing here is about PostgreSQL."""
    return embedded_url


@pytest.fixture
def sync(make_mp: MakeMilepost) -> Iterator[SyncMilepost]:
    """A `mp.sync` that nobody opened yet."""
    sync = make_mp().sync
    yield sync
    sync.close()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as threads:
        yield threads


def until(condition: Callable[[], bool]) -> None:
    """Waits until something that happens elsewhere has happened."""
    end = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.002)


def follow_until_closed(sync: SyncMilepost, caught_up: "Future[int]") -> None:
    """Follows in a thread; tells which one after the first message."""
    for _ in sync.follow():
        caught_up.set_result(threading.get_ident())


def until_it_waits(thread: int) -> None:
    """Waits until a thread waits for a result from elsewhere."""

    def waits() -> bool:
        caller = sys._current_frames()[thread].f_back
        return caller is not None and caller.f_code is Future.result.__code__

    until(waits)


def own_threads() -> int:
    """How many threads of `mp.sync` there are."""
    return sum(thread.name == "milepost-sync" for thread in threading.enumerate())


# -- What the methods give


def test_every_method_and_its_type(sync: SyncMilepost) -> None:
    assert assert_type(sync.append("order-1", M), Appended).version == 1
    many = assert_type(sync.append_many({"order-1": [M, M], "order-2": M}), dict[str, Appended])
    assert {stream: appended.version for stream, appended in many.items()} == {"order-1": 3, "order-2": 1}
    assert assert_type(sync.head(), int) == 4
    assert assert_type(sync.last("order-1"), int) == 3
    messages = assert_type(sync.read("order-1", after_version=1), Iterator[Message[Any]])
    assert [message.version for message in messages] == [2, 3]
    assert [message.stream for message in sync.read(category="order", backwards=True, limit=1)] == ["order-2"]
    following = assert_type(sync.follow(category="order", after=3), Iterator[Message[Any]])
    assert next(following).position == 4


def wrong_calls(sync: SyncMilepost) -> None:
    """mypy refuses each of these: an ignore without an error is an error itself."""
    sync.append(1, M)  # type: ignore[arg-type]
    sync.append("order-1", M, expect=1)  # type: ignore[call-arg]
    sync.append_many([M])  # type: ignore[arg-type]
    sync.read("order-1", limit="1")  # type: ignore[arg-type]
    sync.follow(after="1")  # type: ignore[arg-type]
    sync.last()  # type: ignore[call-arg]
    sync.head(1)  # type: ignore[call-arg]


def test_an_error_keeps_its_type(sync: SyncMilepost) -> None:
    sync.append("order-1", M)
    with pytest.raises(WrongVersion) as wrong:
        sync.append("order-1", M, expected=5)
    assert (wrong.value.expected, wrong.value.actual) == (5, 1)
    with pytest.raises(InvalidMessage, match="stream"):
        sync.append("", M)
    with pytest.raises(InvalidMessage, match="limit"):
        list(sync.read("order-1", limit=-1))
    with pytest.raises(InvalidMessage, match="limit"):
        list(sync.read(limit=-1))


def test_a_database_that_is_not_there(tmp_path: Any) -> None:
    before = own_threads()
    sync = Milepost(f"postgresql://postgres@/postgres?host={tmp_path}").sync
    for call in (lambda: sync.append("order-1", M), sync.head, lambda: sync.read(), sync.__enter__):
        with pytest.raises(Unavailable):
            call()
    assert own_threads() == before


def test_pages_of_a_long_read(sync: SyncMilepost) -> None:
    sync.append("order-1", [M] * 2500)
    assert [message.version for message in sync.read("order-1")] == list(range(1, 2501))
    assert [message.position for message in sync.read()] == list(range(1, 2501))
    with psycopg.connect(sync._milepost.url) as connection:
        assert len(list(sync.read("order-1", connection=connection))) == 2500


# -- Opening and closing


def test_it_opens_when_used_and_again_after_closing(sync: SyncMilepost) -> None:
    before = own_threads()
    for version in (1, 2):
        assert sync.append("order-1", M).version == version
        assert own_threads() == before + 1
        sync.close()
        assert own_threads() == before
        sync.close()
    with sync as entered:
        assert entered.last("order-1") == 2
    assert own_threads() == before
    with sync:
        assert sync.last("order-1") == 2


def test_one_milepost_is_used_blocking_and_then_async(sync: SyncMilepost) -> None:
    async def use() -> int:
        async with sync._milepost as mp:
            return (await mp.append("order-1", M)).version

    assert sync.append("order-1", M).version == 1
    with pytest.raises(MilepostError, match=r"open in another event loop"):
        asyncio.run(use())
    sync.close()
    assert asyncio.run(use()) == 2
    assert sync.append("order-1", M).version == 3


def test_iterators_end_with_the_connections_they_read_from(sync: SyncMilepost) -> None:
    sync.append("order-1", [M] * 1001)
    started = [sync.read("order-1"), sync.read(), sync.follow()]
    for messages in started:
        next(messages)
    sync.close()
    assert sync.last("order-1") == 1001
    for messages in started:
        with pytest.raises(MilepostError, match=CLOSED):
            list(messages)


def test_an_event_loop_that_ends_cuts_no_read_short(sync: SyncMilepost) -> None:
    """It closes the generators that it ran: what they had still to give must not be missing silently."""
    sync.append("order-1", [M] * 1001)
    started = [sync.read("order-1"), sync.read(), sync.follow()]
    for messages in started:
        next(messages)
    loop = sync._milepost._loop
    assert loop is not None
    asyncio.run_coroutine_threadsafe(loop.shutdown_asyncgens(), loop).result(60)
    for messages in started:
        with pytest.raises(MilepostError, match=CLOSED):
            list(messages)


def test_closing_ends_what_other_threads_wait_for(sync: SyncMilepost, threads: ThreadPoolExecutor) -> None:
    sync.append("order-1", M)
    caught_up: Future[int] = Future()
    waiting = threads.submit(follow_until_closed, sync, caught_up)
    until_it_waits(caught_up.result(60))
    sync.close()
    with pytest.raises(MilepostError, match=CLOSED):
        waiting.result(60)
    assert sync.last("order-1") == 1


# -- Following


def listeners(sync: SyncMilepost) -> int:
    """How many connections follow the log of this test."""
    with psycopg.connect(sync._milepost.url) as connection:
        schema = sync._milepost.settings["schema"].value
        query = "select count(*) from pg_stat_activity where query ~* ('^listen .*' || %s)"
        row = connection.execute(query, [schema]).fetchone()
    return row[0] if row else 0


def test_a_new_message_reaches_who_follows(sync: SyncMilepost, threads: ThreadPoolExecutor) -> None:
    sync.append("order-1", M)
    following = sync.follow()
    assert next(following).version == 1
    waiting = threads.submit(next, following)
    sync.append("order-1", M)
    assert waiting.result(60).version == 2


def test_leaving_a_loop_ends_the_following(sync: SyncMilepost) -> None:
    sync.append("order-1", [M, M])
    for message in sync.follow():
        until(lambda: listeners(sync) == 1)
        assert message.version == 1
        break
    until(lambda: listeners(sync) == 0)
    assert [message.version for message in islice(sync.follow(), 2)] == [1, 2]


def test_an_iterator_that_never_began_costs_nothing(sync: SyncMilepost) -> None:
    sync.follow(after=NOW)
    sync.read()
    assert listeners(sync) == 0


def test_the_collector_may_end_a_following_in_the_thread_of_the_loop(sync: SyncMilepost) -> None:
    """Which thread runs a finalizer is chance; none may wait for itself."""
    sync.append("order-1", M)
    following = [sync.follow()]
    next(following[0])
    loop = sync._milepost._loop
    assert loop is not None
    loop.call_soon_threadsafe(following.clear)
    until(lambda: listeners(sync) == 0)
    assert sync.head() == 1


# -- Threads and event loops


def test_many_threads_at_once(sync: SyncMilepost, threads: ThreadPoolExecutor) -> None:
    before = own_threads()
    together = threading.Barrier(8)

    def work(number: int) -> list[int]:
        together.wait(60)
        done = [sync.append(f"order-{number}", M).version for _ in range(10)]
        sync.append("shared-1", M)
        return done + [message.version for message in sync.read(f"order-{number}")]

    results = list(threads.map(work, range(8), timeout=60))
    assert results == [[*range(1, 11)] * 2] * 8
    assert sync.last("shared-1") == 8
    assert own_threads() == before + 1


async def test_a_worker_thread_beside_an_open_milepost(mp: Milepost) -> None:
    def work() -> list[int]:
        mp.sync.append("order-1", M)
        with mp.sync as sync:
            sync.append_many({"order-1": M})
        mp.sync.close()
        following = mp.sync.follow("order-1")
        return [next(following).version, next(following).version, mp.sync.last("order-1"), mp.sync.head()]

    before = own_threads()
    assert await asyncio.to_thread(work) == [1, 2, 2, 2]
    assert own_threads() == before
    assert await mp.last("order-1") == 2


async def test_the_own_event_loop_is_not_blocked_for_ever(mp: Milepost) -> None:
    async with asyncio.timeout(40):
        for call in (
            lambda: mp.sync.append("order-1", M),
            lambda: mp.sync.append_many({"order-1": M}),
            lambda: mp.sync.last("order-1"),
            mp.sync.head,
            mp.sync.read,
            mp.sync.follow,
            mp.sync.__enter__,
        ):
            with pytest.raises(
                MilepostError, match=r"would block this event loop for ever: await the async method"
            ):
                call()
        messages = await asyncio.to_thread(mp.sync.read)
        with pytest.raises(MilepostError, match=r"would block this event loop for ever"):
            next(messages)


async def test_the_thread_of_sync_itself_is_not_blocked_for_ever(sync: SyncMilepost) -> None:
    async def use() -> None:
        with pytest.raises(MilepostError, match=r"would block this event loop for ever"):
            sync.head()
        with pytest.raises(MilepostError, match=r"would block this event loop for ever"):
            sync.close()

    sync.append("order-1", M)
    loop = sync._milepost._loop
    assert loop is not None
    await asyncio.wait_for(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(use(), loop)), 60)


async def test_another_event_loop_may_be_blocked(sync: SyncMilepost) -> None:
    """As in a notebook, where some event loop always runs."""
    assert sync.append("order-1", M).version == 1
    assert [message.version for message in sync.read("order-1")] == [1]


def test_an_event_loop_that_ends_while_a_thread_waits(make_mp: MakeMilepost, threads: ThreadPoolExecutor) -> None:
    mp = make_mp()
    caught_up: Future[int] = Future()

    async def serve() -> Any:
        async with mp:
            await mp.append("order-1", M)
            waiting = threads.submit(follow_until_closed, mp.sync, caught_up)
            await asyncio.to_thread(lambda: until_it_waits(caught_up.result(60)))
            return waiting

    with pytest.raises(MilepostError, match=CLOSED):
        asyncio.run(serve()).result(60)
    assert mp.sync.last("order-1") == 1
    mp.sync.close()


# -- Whole programs

BEGIN = """
import os, signal, sys, threading
from milepost import Milepost, NewMessage
mp = Milepost()
M = NewMessage("order.placed")
"""


@pytest.fixture
def start(database_url: str, schema: str) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts a program of its own, in which every warning is an error."""
    started: list[subprocess.Popen[str]] = []

    def start(program: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", BEGIN + program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "MILEPOST_URL": database_url, "MILEPOST_SCHEMA": schema},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def each_way_to_end() -> Iterator[Any]:
    """Programs that print 1 and end; in the fast shard one for each kind of thread that may be left behind."""
    append = 'mp.sync.append("order-1", M)'
    programs = {
        "call": f'{append}; print(mp.sync.last("order-1"))',
        "with": f'with mp.sync: {append}; print(mp.sync.last("order-1"))',
        "open-follow": f"{append}; following = mp.sync.follow(); print(next(following).version)",
        "open-read": f"{append}; reading = mp.sync.read(); print(next(reading).version)",
        "break": f"{append}\nfor m in mp.sync.follow(): print(m.version); break",
        "exit-in-loop": f"{append}\nfor m in mp.sync.follow(): print(m.version); sys.exit(0)",
        "thread": "sync = mp.sync\n"
        "def work(): threading.main_thread().join(); sync.append('order-1', M); print(sync.head())\n"
        "threading.Thread(target=work).start()",
        "in-a-loop": f"import asyncio\nasync def f(): {append}; print(mp.sync.head())\nasyncio.run(f())",
    }
    for name, program in programs.items():
        marks = [] if name in ("open-follow", "thread") else [pytest.mark.shard("processes")]
        yield pytest.param(program, id=name, marks=marks)


@pytest.mark.parametrize("program", list(each_way_to_end()))
def test_a_program_ends_without_a_word(start: Callable[[str], subprocess.Popen[str]], program: str) -> None:
    process = start(program)
    out, err = process.communicate(timeout=60)
    assert (out, err) == ("1\n", ""), err
    assert process.returncode == 0


def test_a_program_ends_while_a_daemon_follows(start: Callable[[str], subprocess.Popen[str]]) -> None:
    process = start("""
caught_up = threading.Event()
def follow():
    for _ in mp.sync.follow():
        caught_up.set()
threading.excepthook = lambda error: None
mp.sync.append("order-1", M)
threading.Thread(target=follow, daemon=True).start()
caught_up.wait()
""")
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


def test_interrupting_a_following(start: Callable[[str], subprocess.Popen[str]]) -> None:
    process = start("""
from concurrent.futures import wait
def tell_when_it_waits():
    def waits():
        frame = sys._current_frames()[threading.main_thread().ident]
        while frame is not None and frame.f_code is not wait.__code__:
            frame = frame.f_back
        return frame is not None
    while not waits():
        pass
    print("waiting", flush=True)

mp.sync.append("order-1", M)
try:
    for message in mp.sync.follow():
        threading.Thread(target=tell_when_it_waits).start()
except KeyboardInterrupt:
    print("interrupted, at", mp.sync.last("order-1"))
""")
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("interrupted, at 1\n", "")


class Interrupted(BaseException):
    """What the handler of a signal raises."""


@contextmanager
def interrupted_through_another_thread() -> Iterator[None]:
    """Raise `StepsInterrupted` where the main thread waits in the block.

    The signal is given to another thread of the process, as the system may do. Its handler runs in the main one.
    """
    main = threading.main_thread().ident
    assert main is not None
    is_over = threading.Event()

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    def waits() -> bool:
        frame = sys._current_frames().get(main)
        is_asleep = frame is not None and (
            frame.f_code.co_filename == threading.__file__ or frame.f_code.co_name == "_locked"
        )
        while frame is not None and frame.f_code.co_filename != sync_bridge.__file__:
            frame = frame.f_back
        return is_over.is_set() or (is_asleep and frame is not None)

    def give_it_to_this_thread() -> None:
        until(waits)
        time.sleep(0.05)  # by now it is asleep, and not about to be; without this the test passes all the same
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    other = threading.Thread(target=give_it_to_this_thread)
    try:
        with pytest.raises(Interrupted):
            other.start()
            yield
    finally:
        is_over.set()
        other.join()
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_ends_the_wait_for_a_message(sync: SyncMilepost) -> None:
    following = sync.follow(after=NOW)
    with sync, interrupted_through_another_thread():
        next(following)


@pytest.mark.shard("processes")
def test_a_signal_ends_the_wait_for_handlers(make_mp: MakeMilepost) -> None:
    mp = make_mp()

    @mp.subscription("endless")
    async def wait_for_ever(message: Message[Any]) -> None:
        await asyncio.Event().wait()

    with mp.sync as sync:
        sync.append("order-1", M)
        with interrupted_through_another_thread():
            sync.run_until_idle()
        assert sync.last("order-1") == 1


def test_a_signal_ends_the_wait_for_the_end_of_a_block(make_mp: MakeMilepost) -> None:
    mp = make_mp()
    begun = threading.Event()

    @mp.subscription("endless", timeout=1000)
    async def wait_for_ever(message: Message[Any]) -> None:
        begun.set()
        await asyncio.Event().wait()

    with mp.sync as sync:
        sync.append("order-1", M)
        with ExitStack() as stack:
            stack.enter_context(sync.running(grace=1000))
            assert begun.wait(40)
            with interrupted_through_another_thread():
                stack.close()


def test_a_signal_ends_the_wait_for_a_delivery(sync: SyncMilepost) -> None:
    sync.create_subscription("shipping")
    with sync, ExitStack() as stack:
        consumer = stack.enter_context(sync.consumer("shipping"))
        with interrupted_through_another_thread():
            next(iter(consumer))


def test_a_signal_ends_the_wait_of_a_managed_subscription(sync: SyncMilepost) -> None:
    sync.create_subscription("shipping")
    appended = sync.append("order-1", M)
    with sync, interrupted_through_another_thread():
        sync.manage("shipping").caught_up(appended, timeout=1000)


@pytest.fixture
def silent_url() -> Iterator[str]:
    """The address of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield f"postgresql://127.0.0.1:{silent.getsockname()[1]}/x?connect_timeout=1000"


def test_a_signal_ends_the_wait_for_a_server(make_mp: MakeMilepost, silent_url: str) -> None:
    sync = make_mp(url=silent_url).sync
    with interrupted_through_another_thread():
        sync.head()
    assert own_threads() == 0


def test_a_signal_ends_the_wait_for_another_thread_that_opens(
    make_mp: MakeMilepost, threads: ThreadPoolExecutor
) -> None:
    """What the main thread waits for is a lock that the other one holds meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/x?connect_timeout=1000"
        sync = make_mp(url=url).sync
        opening = threads.submit(sync.head)
        server, _ = silent.accept()
        for _ in range(2):
            with interrupted_through_another_thread():
                sync.head()
        with interrupted_through_another_thread():
            sync.close()
        assert not opening.done()
    server.close()
    with pytest.raises(Unavailable):
        opening.result()


def test_a_forked_process_opens_for_itself(start: Callable[[str], subprocess.Popen[str]]) -> None:
    """As under a server or a queue that forks its workers after the program was loaded."""
    process = start("""
import warnings
warnings.filterwarnings("ignore", category=DeprecationWarning)
following = mp.sync.follow()
mp.sync.append("order-1", M)
next(following)
child = os.fork()
if child == 0:
    print("child", mp.sync.append("order-1", M).version, flush=True)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print("parent", mp.sync.append("order-1", M).version, next(following).version, flush=True)
""")
    assert process.communicate(timeout=60) == ("child 2\nparent 3 2\n", "")


def test_what_mp_can_do_sync_can() -> None:
    """A method that is added to `Milepost` is added here too."""
    declarations = {"message", "upcast", "subscription", "provide", "on_event", "declared", "instrument"}
    own_parts = {
        "read_pages",
        "follow_pages",
        "forget",
        "address",
        "adopt",
        "check_handlers",
        "declared_subscription",
    }
    own_parts |= {"dry_run", "leave_schema", "program", "runtime", "twin"}
    methods = {
        name
        for name, value in {**vars(MessageMethods), **vars(Milepost)}.items()
        if callable(value) and re.match("[a-z]", name) and name not in declarations | own_parts
    }
    assert methods <= set(vars(SyncMilepost))


def test_the_servers(sync: SyncMilepost) -> None:
    assert assert_type(sync.nodes(), list[Node]) == []
