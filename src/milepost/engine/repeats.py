"""Which messages of a lane are repeated: those that had been handled before."""

from collections.abc import Sequence
from typing import Any

from milepost.engine.order import Order, order_named
from milepost.engine.trace.orders import lane_of
from milepost.engine.trace.selecting import selecting
from milepost.log.message import Message
from milepost.progress.memories import Memory
from milepost.progress.tracing import ranges_of
from milepost.ranges import Ranges


class Repeats:
    """What of a lane a replay brings again, and what is known of how it was handled before."""

    def __init__(self, ranges: Ranges, memories: Sequence[Memory], order: Order) -> None:
        self._ranges = ranges
        self._passed = [_Passed(memory, order) for memory in memories] if ranges else []

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def __contains__(self, message: Message[Any]) -> bool:
        return message.position in self._ranges and any(each.had(message) for each in self._passed)


class _Passed:
    """What one definition had passed."""

    def __init__(self, memory: Memory, order: Order) -> None:
        named = order_named(memory.orders, order)
        self._order = named if named.text == memory.orders else None
        self._lanes = memory.lanes
        self._ranges = {lane: ranges_of(stored) for lane, stored in memory.ranges.items()}
        self._selecting = selecting(memory.selects)

    def had(self, message: Message[Any]) -> bool:
        """Whether it had handled a message. Who cannot know takes it for new: nothing is left undone."""
        return self._was_passed(message) and self._was_selected(message)

    def _was_passed(self, message: Message[Any]) -> bool:
        if self._order is None:
            # Only a function that is gone knows in which lane it was.
            return all(
                lane in self._ranges and message.position in self._ranges[lane] for lane in range(self._lanes)
            )
        lane = lane_of(self._order, message, self._lanes)
        return lane in self._ranges and message.position in self._ranges[lane]

    def _was_selected(self, message: Message[Any]) -> bool:
        return self._selecting is not None and self._selecting.verdict(message).state == "selected"
