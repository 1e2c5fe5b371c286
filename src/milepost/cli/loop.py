"""Event loops of commands."""

import asyncio
import signal
import socket
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

_DRAIN_BYTES = 4096


def run(main: Coroutine[Any, Any, T]) -> T:
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
        loop.add_reader(reader, _drain, reader)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            return await main
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(reader)


def _drain(reader: socket.socket) -> None:
    with suppress(BlockingIOError):
        reader.recv(_DRAIN_BYTES)
