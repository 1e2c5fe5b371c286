"""`mp.sync.running`: subscriptions that run while code that is not async does something else."""

from queue import Queue
from typing import Any

import pytest

from milepost import Message, Milepost, NewMessage, UnknownSubscription
from milepost.engine.lanes.balancer import LaneBalancer
from support import MakeMilepost


@pytest.fixture
def mp(make_mp: MakeMilepost) -> Milepost:
    return make_mp()


@pytest.fixture
def handled(mp: Milepost) -> "Queue[Any]":
    """What the handler of subscription `all` got."""
    queue: Queue[Any] = Queue()

    @mp.subscription("all", category="order", lanes=2)
    async def handle(message: Message[Any]) -> None:
        queue.put(message.data)

    return queue


def test_it_works_inside_the_block_only(mp: Milepost, handled: "Queue[Any]") -> None:
    with mp.sync as log:
        for number in range(2):
            with log.running(only=["all"], grace=5):
                log.append("order-1", NewMessage("placed", number))
                assert handled.get(timeout=60) == number
            assert log.manage("all").info().owners == ()
        log.append("order-1", NewMessage("placed", 2))
        assert log.manage("all").info().lag.positions == 1


def test_it_opens_by_itself(mp: Milepost, handled: "Queue[Any]") -> None:
    with mp.sync.running():
        mp.sync.append("order-1", NewMessage("placed", 1))
        assert handled.get(timeout=60) == 1
    mp.sync.close()


def test_what_cannot_begin(mp: Milepost, handled: "Queue[Any]") -> None:
    with mp.sync as log:
        with pytest.raises(UnknownSubscription), log.running(only=["al"]):
            pytest.fail("it has not begun")
        with pytest.raises(ValueError, match="^only: "), log.running(only=[]):
            pytest.fail("it has not begun")
        with pytest.raises(ValueError, match="^errors: .*did you mean 'park'"):
            log.run_until_idle(errors="prak")  # type: ignore[arg-type]


def test_an_error_of_the_block(mp: Milepost, handled: "Queue[Any]") -> None:
    with mp.sync as log:
        with pytest.raises(KeyError), log.running():
            raise KeyError
        assert log.manage("all").info().owners == ()


def test_an_error_that_ended_the_work_is_raised_at_the_end(
    mp: Milepost, handled: "Queue[Any]", monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(sharing: object) -> None:
        handled.put("broken")
        raise ZeroDivisionError

    monkeypatch.setattr(LaneBalancer, "_share", broken)
    with mp.sync as log:
        with pytest.raises(ZeroDivisionError):
            with log.running():
                assert handled.get(timeout=60) == "broken"
