"""A client for code that is not async."""

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import milepost
from contract.both import order
from milepost import ConsumerClosed, Lost, MilepostError, Retry, UnknownSubscription, WrongVersion
from milepost.client.client import Client
from milepost.client.subscriptions import ClientSubscription
from milepost.client.sync import SyncClient, SyncClientSubscription


@pytest.fixture
def sync(far_address: str) -> Iterator[SyncClient]:
    """A client that nobody has opened."""
    with milepost.connect(far_address).sync as sync:
        yield sync


def test_appending_and_reading(sync: SyncClient) -> None:
    assert sync.append("order-1", [order(1), order(2)]).version == 2
    assert sync.append_many({"order-2": order(3)})["order-2"].version == 1
    assert [message.data["n"] for message in sync.read()] == [1, 2, 3]
    assert (sync.head(), sync.last("order-1")) == (3, 2)
    with pytest.raises(WrongVersion):
        sync.append("order-1", order(4), expected=7)
    following = sync.follow(category="order")
    assert [next(following).data["n"] for _ in range(3)] == [1, 2, 3]
    following.close()  # type: ignore[attr-defined]


def test_operating_and_pulling(sync: SyncClient) -> None:
    emails = sync.create_subscription("emails", tracking="all", retry=Retry(delay=60))
    sync.append("order-1", [order(1), order(2)])
    tasks = sync.pull("emails")
    assert len(sync.settle(ack=tasks[0], park=tasks[1], reason="broken").moved) == 2
    assert [delivery.reason for delivery in emails.deliveries(state="parked")] == ["broken"]
    assert (emails.count_deliveries(), emails.skip(all=True).moved) == (1, 1)
    emails.pause()
    assert sync.manage("emails").info().status == "paused"
    emails.resume()
    assert [traced.state for traced in sync.trace("order-1")] == ["done", "skipped"]
    emails.delete()
    with pytest.raises(UnknownSubscription):
        emails.info()


def test_a_consumer(sync: SyncClient) -> None:
    sync.create_subscription("shipping", category="order", retry=Retry(delay=60))
    sync.append("order-1", [order(n) for n in range(4)])
    with sync.consumer("shipping") as consumer:
        first = next(consumer)
        first.ack()
        with pytest.raises(Lost):
            first.ack()
        with next(consumer) as message:
            assert message.data == {"n": 1}
        with next(consumer):
            raise ValueError("no")
        [batch] = [next(consumer.batches(10))]
        assert consumer.settle(park=batch, reason="broken").moved == (4,)
        consumer.drain()
        assert list(consumer) == []
        assert consumer.closed == "drained"
        with pytest.raises(ConsumerClosed):
            consumer.configure(capacity=4)
    assert states(sync) == {3: "retrying", 4: "parked"}


def states(sync: SyncClient) -> dict[int, str]:
    return {delivery.position: delivery.state.value for delivery in sync.manage("shipping").deliveries()}


def test_several_threads_take_from_one_consumer(sync: SyncClient) -> None:
    sync.create_subscription("shipping", category="order")
    sync.append("order-1", [order(n) for n in range(40)])
    with sync.consumer("shipping") as consumer, ThreadPoolExecutor(4) as threads:

        def take(_: int) -> int:
            delivery = next(consumer)
            delivery.ack()
            return delivery.position

        assert sorted(threads.map(take, range(40))) == list(range(1, 41))


async def test_the_own_event_loop_is_not_blocked(far_address: str) -> None:
    async with milepost.connect(far_address) as client:
        with pytest.raises(MilepostError, match="would block this event loop"):
            client.sync.head()
        assert await asyncio.to_thread(client.sync.head) == 0


@pytest.mark.parametrize(
    ("blocking", "async_"), [(SyncClient, Client), (SyncClientSubscription, ClientSubscription)]
)
def test_what_a_client_can_do_sync_can(blocking: type[Any], async_: type[Any]) -> None:
    other = {"sync", "forget", "read_pages", "follow_pages", "delivery_pages"}
    for name in {name for name in vars(async_) if name[0] != "_"} - other:
        given, wanted = (inspect.signature(vars(each)[name]).parameters for each in (blocking, async_))
        assert list(given) == list(wanted), name


MISSING = """
import sys
sys.modules["{}"] = None
import milepost
try:
    milepost.connect("http://localhost:8480")
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("package", ["httpx", "websockets"])
def test_what_to_install(package: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MISSING.format(package)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == 'the client needs more packages: pip install "milepost[client]"\n'
