"""Messages for plain handlers that a thread runs one after the other."""

from collections import deque
from collections.abc import Callable, Iterator
from contextvars import Context
from dataclasses import dataclass
from time import monotonic
from typing import Any

from milepost.engine.calls import AnyDelivery
from milepost.engine.owned import Owned
from milepost.engine.slots import Slot


@dataclass(slots=True, eq=False)
class Item:
    """A message, and the call that is to be made for it."""

    owned: Owned
    delivery: AnyDelivery
    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    context: Context
    error: BaseException | None = None
    seconds: float = 0.0
    """How long the call took."""


class Chunk:
    """A few messages on their way through a thread.

    To change threads takes longer than most handlers that do little, so they change together. What waits behind
    one that turns out to be slow can be taken back at any time: both sides only pop from the ends of a deque.
    """

    def __init__(self, items: list[Item], slot: Slot, timeout: float) -> None:
        self._waiting = deque(items)
        self._ended: deque[Item] = deque()
        self._slot = slot
        self._timeout = timeout
        self.current: Item | None = None

    @property
    def waits(self) -> bool:
        """Whether some of them have not begun."""
        return bool(self._waiting)

    def run(self) -> None:
        """In the thread: calls the handlers."""
        while (item := _popped(self._waiting.popleft)) is not None:
            self.current = item
            self._slot.begin(self._timeout)
            begun = monotonic()
            try:
                item.context.run(item.call, *item.arguments)
            except BaseException as error:
                item.error = error
            item.seconds = monotonic() - begun
            self._slot.deadline = None
            self.current = None
            self._ended.append(item)

    def taken_back(self) -> Iterator[Item]:
        """Those that have not begun, the last first; they do not begin any more."""
        while (item := _popped(self._waiting.pop)) is not None:
            yield item

    def ended(self) -> Iterator[Item]:
        """Those that have ended."""
        while (item := _popped(self._ended.popleft)) is not None:
            yield item


def _popped(pop: Callable[[], Item]) -> Item | None:
    try:
        return pop()
    except IndexError:
        return None
