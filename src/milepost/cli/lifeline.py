"""Ends a process with the one that started it, also when that one was killed and could tell nobody."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from milepost.cli.ending import say


class Lifeline:
    """The end of the process that starts another: the system lets go of it, whatever happens."""

    def __init__(self) -> None:
        inherited, self._descriptor = os.pipe()
        self.other = inherited
        """What the started process inherits."""

    def begun(self) -> None:
        """The other process has its end."""
        os.close(self.other)

    def close(self) -> None:
        """The other process has ended."""
        os.close(self._descriptor)


@contextmanager
def ending_with(descriptor: int) -> Iterator[None]:
    """Within this block this process gets SIGTERM when the other end of a lifeline is gone."""
    loop = asyncio.get_running_loop()
    os.set_inheritable(descriptor, False)

    def gone() -> None:
        loop.remove_reader(descriptor)
        os.kill(os.getpid(), signal.SIGTERM)
        say("the process that started this one is gone: it ends")

    loop.add_reader(descriptor, gone)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
