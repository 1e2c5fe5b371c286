"""A stretch of the log in memory."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from milepost.log.message import Message
from milepost.log.query import Segment

SEGMENT = Segment(
    0, 10, [cast(Message[Any], SimpleNamespace(position=position, size=500)) for position in (3, 5, 7)]
)


@pytest.mark.parametrize(
    ("end", "high", "positions"), [(None, 10, [3, 5, 7]), (10, 10, [3, 5, 7]), (5, 5, [3, 5]), (4, 4, [3])]
)
def test_nothing_is_beyond_its_end(end: int | None, high: int, positions: list[int]) -> None:
    cut = SEGMENT.up_to(end)
    assert (cut.low, cut.high) == (0, high)
    assert [message.position for message in cut.messages] == positions


@pytest.mark.parametrize(
    ("weight", "high", "positions"), [(1, 3, [3]), (1501, 5, [3, 5]), (4500, 7, [3, 5, 7]), (4501, 10, [3, 5, 7])]
)
def test_a_beginning_has_at_least_one_message(weight: int, high: int, positions: list[int]) -> None:
    beginning = SEGMENT.beginning(weight)
    assert (beginning.low, beginning.high) == (0, high)
    assert [message.position for message in beginning.messages] == positions
