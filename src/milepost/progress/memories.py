"""What had been handled before a replay: which definition passed it, and in which of its lanes."""

from collections.abc import Mapping

import msgspec

from milepost.ranges import Ranges

Memories = Mapping[tuple[int, int], Ranges]
"""By the number of a definition and a lane of it."""


class Memory(msgspec.Struct, frozen=True):
    """What one definition had passed before a replay."""

    number: int
    selects: str
    """What it selected: anything else it had passed without handling it."""
    orders: str
    """What it ordered by, which says whose a message was."""
    lanes: int
    ranges: dict[int, list[int]]
    """For each of its lanes that has some: first, last, first, last, …"""
