"""What a message costs does not depend on the number of routes: counted in calls, the same on every machine."""

import sys
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import pytest

from milepost.dispatch import Cursor, ExchangeAnswer, Lane, LaneState, Route, Routes, Settings

MESSAGES = 400


@dataclass(frozen=True)
class Example:
    position: int
    properties: dict[str, Any]
    size: int = 100


@dataclass
class Calls:
    """Counts the calls of functions, from the beginning of a block to its end."""

    count: int = 0
    _before: Any = field(default=None)

    def __enter__(self) -> "Calls":
        self._before = sys.getprofile()
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(self._before)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        self.count += event in ("call", "c_call")


def calls(routes: int) -> int:
    """How many it takes to bring messages for all of these routes through a lane."""
    settings = Settings(ordered=False, window=MESSAGES)
    state: LaneState[Example] = LaneState(cursor=Cursor(0), now=0.0)
    lane = Lane(settings, state, routes=Routes("round_robin"), random=lambda: 0.5)
    for number in range(routes):
        lane.join(f"consumer {number}", [Route(f"customer == {number}", capacity=MESSAGES)])
    lane.next(0.0)
    step = max(1, routes // MESSAGES)
    messages = [Example(n, {"customer": (n * step) % routes}) for n in range(1, MESSAGES + 1)]
    answer: ExchangeAnswer[Example] = ExchangeAnswer(rows=False)
    settled = 0
    with Calls() as counted:
        lane.fill(messages, None, MESSAGES)
        while given := lane.next(0.0, 50):
            settled += len(given)
            lane.ack(given)
        lane.exchange(0.0)
        lane.exchanged(answer)
    assert settled == MESSAGES
    return counted.count


def test_a_thousand_routes_cost_no_more_than_ten() -> None:
    check_costs(1000)


@pytest.mark.shard("large")
def test_ten_thousand_routes_cost_no_more_than_ten() -> None:
    check_costs(10_000)


def check_costs(routes: int) -> None:
    few, many = calls(10), calls(routes)
    assert few > 10 * MESSAGES
    assert many <= few * 1.01
