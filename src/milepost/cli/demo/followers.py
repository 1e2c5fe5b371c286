"""Those who read along: three followers, and a reader of the kind that people write themselves."""

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from milepost.app import Milepost
from milepost.cli.demo.shop import Shop
from milepost.log.message import Message
from milepost.log.statements import in_schema

LOOK_EVERY = 0.02
"""Seconds between two looks of the home-made reader."""


@dataclass
class Reader:
    """What somebody who reads along has seen."""

    name: str
    follows: str
    wants: Callable[[str, str], bool] = lambda category, kind: True
    """Whether a message of this category and type is for it."""
    positions: list[int] = field(default_factory=list)
    """What it has seen; it only ever goes upwards."""

    @property
    def newest(self) -> int:
        """The highest position it has seen."""
        return self.positions[-1] if self.positions else 0

    def skipped(self, orders: list[int]) -> list[int]:
        """Which of these orders it passed without seeing them."""
        if not self.wants("order", "order.placed"):
            return []
        return [position for position in orders if position < self.newest and not self._saw(position)]

    def _saw(self, position: int) -> bool:
        place = bisect_left(self.positions, position)
        return place < len(self.positions) and self.positions[place] == position


@dataclass
class Follower(Reader):
    """Follows with Milepost."""

    selection: dict[str, Any] = field(default_factory=dict)
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=2000))
    """Seconds from the return of an append to here, for what nothing held back."""
    recent: deque[Message[Any]] = field(default_factory=lambda: deque(maxlen=30))

    async def run(self, mp: Milepost, shop: Shop) -> None:
        """Follows for ever."""
        async for message in mp.follow(**self.selection):
            self.positions.append(message.position)
            self.recent.append(message)
            # The follower may be faster than the append's own answer.
            now = monotonic()
            await asyncio.sleep(0)
            if message.position in shop.returned:
                self.waits.append(max(0.0, now - shop.returned[message.position]))


def followers() -> list[Follower]:
    """The three of the demo."""
    return [
        Follower("everything", "all messages"),
        Follower(
            "orders",
            "category order",
            wants=lambda category, kind: category == "order",
            selection={"category": "order"},
        ),
        Follower(
            "payments",
            "types payment.*",
            wants=lambda category, kind: kind.startswith("payment."),
            selection={"types": "payment.*"},
        ),
    ]


class HomeMade(Reader):
    """Asks for positions above the last one it has seen, as most readers that people write themselves do."""

    def __init__(self) -> None:
        super().__init__("home-made", "where position > last")

    async def run(self, mp: Milepost) -> None:
        """Looks for ever."""
        statement = in_schema(
            'select "position" from :"schema".messages where "position" > %(last)s order by "position" limit 1000',
            mp.settings["schema"].value,
        )
        while True:
            self.positions += [row[0] for row in await mp.log.database.execute(statement, {"last": self.newest})]
            await asyncio.sleep(LOOK_EVERY)
