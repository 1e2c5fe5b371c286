"""Work that goes on to its end when whoever waits for it is cancelled."""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

_left: set[asyncio.Task[None]] = set()
"""What nobody may wait for any more: the event loop itself keeps no task alive."""


async def uncancelled(work: Coroutine[Any, Any, None]) -> None:
    """Waits for the end of some work. A cancellation ends the waiting, not the work."""
    task = asyncio.create_task(work)
    _left.add(task)
    task.add_done_callback(_left.discard)
    await asyncio.shield(task)


async def uncancelled_if_it_waits(work: Coroutine[Any, Any, None]) -> None:
    """The same for work that seldom has to wait, and then for locks only: most of the time it needs no task."""
    try:
        waits_for = work.send(None)
    except StopIteration:
        return
    await uncancelled(_rest(work, waits_for))


async def _rest(work: Coroutine[Any, Any, None], waits_for: Any) -> None:
    await _Rest(work, waits_for)


class _Rest:
    """What is left of a coroutine that has begun to wait for something."""

    def __init__(self, work: Coroutine[Any, Any, None], waits_for: Any) -> None:
        self._work = work
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        while True:
            try:
                try:
                    value = yield self._waits_for
                except BaseException as error:
                    self._waits_for = self._work.throw(error)
                else:
                    self._waits_for = self._work.send(value)
            except StopIteration:
                return
