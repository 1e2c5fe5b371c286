"""Event loops that signals wake, and Ctrl-C that takes effect between two steps."""

import asyncio
import signal
import socket
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

_DRAIN_BYTES = 4096


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does. Signals wake the loop, whichever thread the system gave them to.

    A coroutine that adds signal handlers to its loop needs `asyncio.run`: with them the loop is woken already.
    """
    return asyncio.run(_woken_by_signals(main))


async def _woken_by_signals(main: Coroutine[Any, Any, T]) -> T:
    # Python runs the handlers of signals in the main thread, between two steps. A loop that waits for sockets
    # takes no step, so each signal has to arrive at a socket, too.
    loop = asyncio.get_running_loop()
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        loop.add_reader(reader, _discard_wakeups, reader)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            return await main
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(reader)


def _discard_wakeups(reader: socket.socket) -> None:
    with suppress(BlockingIOError):
        reader.recv(_DRAIN_BYTES)


class StepsInterrupted(Exception):
    """Ctrl-C was noted during a step that has just ended."""


class StepInterrupt:
    """Notes Ctrl-C, until `check` is called after a step. A second Ctrl-C does not wait."""

    def __init__(self) -> None:
        self.is_noted = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Raise `StepsInterrupted` if Ctrl-C was noted. Any thread may call it."""
        if self.is_noted:
            raise StepsInterrupted

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.is_noted:
            raise KeyboardInterrupt
        self.is_noted = True


@contextmanager
def delayed_interrupt() -> Iterator[None]:
    """Delay Ctrl-C until the block has ended, so that its outcome is known. A second Ctrl-C does not wait."""
    with StepInterrupt() as interrupt:
        yield
    if interrupt.is_noted:
        raise KeyboardInterrupt
