"""Ctrl-C for what goes on in steps: it takes effect between two of them."""

import signal
from types import FrameType, TracebackType
from typing import Self


class Interrupted(Exception):
    """A person wants it to end, and a step has just ended."""


class Interruption:
    """Notes Ctrl-C, until `check` is called after a step. A second Ctrl-C does not wait."""

    def __init__(self) -> None:
        self._noted = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Raises `Interrupted` if Ctrl-C was noted; from any thread."""
        if self._noted:
            raise Interrupted

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted:
            raise KeyboardInterrupt
        self._noted = True
