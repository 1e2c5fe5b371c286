"""Appends messages over whatever happens, and knows which there are."""

import asyncio
import random
from collections import Counter, defaultdict
from typing import Any
from uuid import uuid4

from milepost import Milepost, NewMessage, Unavailable


class Load:
    """Messages in a few streams, so that each has a long order to keep."""

    def __init__(self, mp: Milepost, chance: random.Random, streams: int = 20) -> None:
        self._mp = mp
        self._chance = chance
        self._streams = streams
        self.wishes: dict[str, list[Any]] = defaultdict(list)
        """The data of each stream's messages, from version 1 on."""

    @property
    def total(self) -> int:
        """How many messages there are."""
        return sum(map(len, self.wishes.values()))

    async def append(self, count: int = 1, data: Any = None) -> None:
        """Appends to streams at random."""
        for _ in range(count):
            await self.append_to(f"order-{self._chance.randrange(self._streams)}", data)

    async def append_to(self, stream: str, data: Any = None) -> None:
        """Appends once, however often the answer is lost: the id makes a repetition harmless."""
        message = NewMessage("placed", data, id=uuid4())
        while True:
            try:
                await self._mp.append(stream, message)
            except Unavailable:
                await asyncio.sleep(0.05)
            else:
                self.wishes[stream].append(data)
                return

    def versions(self) -> dict[str, list[int]]:
        """What has to be handled, of each stream in this order."""
        return {stream: list(range(1, len(wishes) + 1)) for stream, wishes in self.wishes.items()}

    def once(self) -> Counter[tuple[str, int]]:
        """Each message once."""
        return Counter((stream, version) for stream, versions in self.versions().items() for version in versions)
