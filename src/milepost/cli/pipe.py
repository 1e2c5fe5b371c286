"""Carries the reports of a process to the one that started it."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress

import msgspec

from milepost.cli.metrics import Measured
from milepost.cli.reports import Report

_decoder: "msgspec.json.Decoder[Report | Measured]" = msgspec.json.Decoder(Report | Measured)


class Mouth:
    """The end of the process that reports."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, False)

    def tell(self, report: Report | Measured) -> None:
        """One line; lost where nobody reads it."""
        with suppress(OSError):
            os.write(self._descriptor, msgspec.json.encode(report) + b"\n")


class Ear:
    """The end of the process that started it."""

    def __init__(self) -> None:
        self._descriptor, inherited = os.pipe()
        self.other = inherited
        """What the started process inherits."""

    def begun(self) -> None:
        """The other process has its end, and has it alone: when it ends, so does the pipe."""
        os.close(self.other)
        self.other = -1

    async def follow(self, heard: Callable[[Report | Measured], None]) -> None:
        """Passes on what is said until the other end is closed. Who says something else is not heard any more."""
        loop, lines = asyncio.get_running_loop(), asyncio.StreamReader()
        file = os.fdopen(self._descriptor, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), file)
        try:
            async for line in lines:
                heard(_decoder.decode(line))
        except (ValueError, msgspec.MsgspecError):
            return
        finally:
            transport.close()
