"""Messages for plain handlers that a thread runs one after the other."""

from collections import deque
from collections.abc import Callable, Iterator
from contextvars import Context
from dataclasses import dataclass
from threading import get_ident
from time import monotonic
from types import TracebackType
from typing import Any

from milepost.engine.calls import AnyDelivery
from milepost.engine.outcomes import ENDS_PROGRAM, EndsProgram
from milepost.engine.owned import Owned
from milepost.engine.slots import Slot
from milepost.engine.tracebacks import stack_of


@dataclass(slots=True, eq=False)
class Item:
    """A message, and the call that is to be made for it."""

    owned: Owned
    delivery: AnyDelivery
    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    context: Context
    error: BaseException | None = None
    timed_out: Exception | None = None
    """Set when its time is up, whatever becomes of the call."""
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
        self._thread: int | None = None
        self.current: Item | None = None
        self.ending: EndsProgram | None = None
        """What ends the program, if one of the calls raised that; those after it have not begun."""

    @property
    def waits(self) -> bool:
        """Whether some of them have not begun."""
        return bool(self._waiting)

    def run(self) -> None:
        """In the thread: calls the handlers."""
        self._thread = get_ident()
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
            if isinstance(item.error, ENDS_PROGRAM):
                break

    def where(self) -> TracebackType | None:
        """Return where the thread is just now."""
        return None if self._thread is None else stack_of(self._thread, Chunk.run.__code__)

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
