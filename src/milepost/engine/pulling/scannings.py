"""What is remembered of the subscriptions that are pulled from, within bounds for all of them together."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator

from milepost.engine.place import Place
from milepost.engine.pulling.scanning import Read, Scanning
from milepost.engine.pulling.stock import Stock
from milepost.log.database import end

REMEMBERED = 1000
"""Of so many subscriptions it is remembered how they stood, and what was read ahead."""
READ_AHEAD = 16 * 2**20
"""Bytes of messages that are read ahead, of all subscriptions together: who was pulled longest ago goes first."""
AT_ONCE = 4
"""How many read ahead at the same time: what they read is not counted before they have it."""


class Scannings:
    """One `Scanning` for each subscription that was pulled from lately; the last one is always kept."""

    def __init__(self) -> None:
        self._scannings: OrderedDict[tuple[str, str], Scanning] = OrderedDict()
        self._reading: set[asyncio.Task[Stock | None]] = set()

    def __iter__(self) -> Iterator[Scanning]:
        """Who was pulled longest ago comes first."""
        return iter(self._scannings.values())

    def of(self, place: Place, group: str, name: str) -> Scanning:
        """The one of a subscription that is pulled from now."""
        scanning = self._scannings.pop((group, name), None) or Scanning(place, name, self._begin)
        self._scannings[group, name] = scanning
        return scanning

    @property
    def size(self) -> int:
        """Bytes of messages that are here."""
        return sum(scanning.size for scanning in self)

    def make_room(self) -> None:
        """Forgets what is too much. Called whenever something may have been read."""
        size = self.size
        while len(self._scannings) > 1 and (len(self._scannings) > REMEMBERED or size > READ_AHEAD):
            _, oldest = self._scannings.popitem(last=False)
            size -= oldest.size
            oldest.close()

    async def close(self) -> None:
        """Forgets everything, and reads nothing ahead any more."""
        while self._scannings:
            self._scannings.popitem()[1].close()
        for task in list(self._reading):
            await end(task)

    def _begin(self, read: Read) -> asyncio.Task[Stock | None] | None:
        """Reads ahead, unless enough others do: whoever pulls next reads it then."""
        if len(self._reading) >= AT_ONCE:
            return None
        task = asyncio.create_task(read(), name="milepost-scanning")
        self._reading.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Stock | None]) -> None:
        self._reading.discard(task)
        if not task.cancelled():
            # Looked at, so that nobody is told of an error of one that is forgotten.
            task.exception()
        self.make_room()
