"""Messages for the versions of a program, all at once or on and on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from milepost import Milepost, NewMessage

STREAMS = 20
KEYS = 7


class Load:
    """Appends to a few streams in turn; the property `key` runs across them, or is that of the stream."""

    def __init__(self, mp: Milepost, *, keys_of_streams: bool = False) -> None:
        self._mp = mp
        self._keys_of_streams = keys_of_streams
        self._count = 0
        self.messages: dict[int, tuple[str, int]] = {}
        """The stream and the key of each message, by position."""
        self.of_type: dict[str, set[int]] = {}

    @property
    def positions(self) -> set[int]:
        """Where the messages are."""
        return set(self.messages)

    async def append(
        self,
        count: int = 1,
        type: str = "a",
        *,
        key: int | None = None,
        stream: str | None = None,
        **wish: Any,
    ) -> int:
        """Appends so many; the position of the last."""
        position = 0
        for _ in range(count):
            n = self._count
            self._count += 1
            own = (n % STREAMS if self._keys_of_streams else n) % KEYS
            properties = {"key": own if key is None else key, "n": n}
            message = NewMessage(type, wish, properties=properties)
            stream_, key_ = stream or f"s-{n % STREAMS}", properties["key"]
            position = (await self._mp.append(stream_, message)).position
            self.messages[position] = (stream_, key_)
            self.of_type.setdefault(type, set()).add(position)
        return position

    @asynccontextmanager
    async def going_on(self, pause: float = 0.02) -> AsyncIterator[None]:
        """Appends for as long as the block lasts."""
        over = asyncio.Event()
        task = asyncio.create_task(self._go_on(over, pause))
        try:
            yield
        finally:
            over.set()
            await task

    async def _go_on(self, over: asyncio.Event, pause: float) -> None:
        while not over.is_set():
            await self.append(2)
            await asyncio.sleep(pause)
