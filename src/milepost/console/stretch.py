"""A stretch of the log: some of the messages that somebody chose, and which positions were looked at for them."""

from dataclasses import dataclass
from time import monotonic
from typing import Any

from milepost.app import Milepost
from milepost.console.choice import Choice
from milepost.log.codec import Codec
from milepost.log.message import Message
from milepost.log.reader import FIRST_SPAN, PAGE_BYTES, Page, Query, Reader

PAGE = 50
"""Messages of a stretch."""
SECONDS = 1.5
"""After which a search ends with what it has: whoever wants more looks further."""

STATEMENT = 0.2
"""Seconds that one statement is to take, about."""


@dataclass(frozen=True)
class Stretch:
    """What was found between two positions."""

    messages: list[Message[Any]]
    """The newest first, or the oldest first, as it was asked for."""
    low: int
    high: int
    """It was looked at the positions above `low`, up to `high`."""
    head: int
    """How far the log went."""

    @property
    def is_full(self) -> bool:
        """Whether as much was found as a stretch has; else there was no more, or the search ended early."""
        return len(self.messages) >= PAGE

    @property
    def older(self) -> int | None:
        """Where the stretch before this one ends; None at the beginning of the log."""
        return self.low + 1 if self.low > 0 else None

    @property
    def newer(self) -> int | None:
        """Where the stretch after this one begins; None at the end of the log."""
        return self.high if self.high < self.head else None


class Search:
    """Looks for messages; one statement looks at a bounded range of positions."""

    def __init__(self, mp: Milepost, choice: Choice, *, most: int = PAGE, seconds: float = SECONDS) -> None:
        self._mp = mp
        self._choice = choice
        self._most = most
        self._seconds = seconds
        self._reader = reader_of(mp)

    async def backwards(self, before: int | None = None) -> Stretch:
        """The newest messages, or those before a position, the newest first."""
        query = self._choice.query(backwards=True)
        head = await self._mp.head()
        high = end = head if before is None else min(head, before - 1)
        found: Page = []
        span, widest = query.spans
        deadline = monotonic() + self._seconds
        while end > 0 and len(found) < self._most:
            low = max(0, end - span)
            began = monotonic()
            page, cut = await self._page(query, low, end, self._most - len(found))
            found += query.filtered(page, self._most - len(found))
            end = page[-1].position - 1 if cut else low
            span = min(adapted(span, monotonic() - began), widest)
            if monotonic() > deadline or sum(message.size for message in found) > PAGE_BYTES:
                break
        if len(found) == self._most:
            end = found[-1].position - 1
        return Stretch(found, max(0, end), high, head)

    async def forwards(self, after: int) -> Stretch:
        """The messages after a position, the oldest first."""
        query = self._choice.query(backwards=False)
        head = await self._mp.head()
        end = after
        found: Page = []
        span, widest = query.spans
        deadline = monotonic() + self._seconds
        while end < head and len(found) < self._most:
            high = min(head, end + span)
            began = monotonic()
            page, cut = await self._page(query, end, high, self._most - len(found))
            found += query.filtered(page, self._most - len(found))
            end = page[-1].position if cut else high
            span = min(adapted(span, monotonic() - began), widest)
            if monotonic() > deadline or sum(message.size for message in found) > PAGE_BYTES:
                break
        if len(found) == self._most:
            end = found[-1].position
        return Stretch(found, min(after, head), min(end, head), head)

    async def _page(self, query: Query, low: int, high: int, wanted: int) -> tuple[Page, bool]:
        size = query.page_size(wanted)
        log = self._mp.log
        page = await self._reader.log_page(
            log.database, query, low=low, high=high, limit=size, life=log.horizon.life
        )
        return page, query.cuts(page, size)


def adapted(span: int, took: float) -> int:
    """How many positions the next statement looks at, by how many seconds the last one took."""
    return max(FIRST_SPAN, int(span * min(4.0, max(0.25, STATEMENT / max(took, 0.001)))))


def reader_of(mp: Milepost) -> Reader:
    """Reads messages as they are stored: no class of a program's is asked."""
    return Reader(mp.log.statements, Codec(mp.settings["max_message_bytes"].value))
