"""A console to look at: a server in the test's process, and what a test does to its database."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from milepost import Milepost
from milepost.console import Console
from server.websocket.conftest import serving

CHROMIUM = "/usr/bin/chromium"
SERVER = ("milepost.server", "milepost.console")
"""Who may complain: the programs of a test have their own to say, in the same process."""


class Complaints(logging.Handler):
    """Keeps what a server warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def lines(self) -> list[str]:
        """Each of them."""
        return [record.getMessage() for record in self.records]

    @property
    def faults(self) -> list[str]:
        """Those that came with a traceback."""
        return [record.getMessage() for record in self.records if record.exc_info]


class Site:
    """A server with a console, on a schema."""

    def __init__(self, url: str, schema: str, address: str, complaints: Complaints) -> None:
        self.url = url
        self.schema = schema
        self.address = address
        self.complaints = complaints

    def milepost(self, **options: Any) -> Milepost:
        """One more program on the same schema."""
        return Milepost(self.url, schema=self.schema, **options)

    def path(self, *parts: str) -> str:
        """The address of a page."""
        return "/".join([f"{self.address}/console", *parts])


@asynccontextmanager
async def a_site(url: str, schema: str, *, access: str) -> AsyncIterator[Site]:
    """A console on a schema until the end of the block."""
    complaints = Complaints()
    loggers = [logging.getLogger(name) for name in SERVER]
    for logger in loggers:
        logger.addHandler(complaints)
    try:
        async with serving(Milepost(url, schema=schema), access=access, pages=Console, grace=1) as served:
            yield Site(url, schema, served.address, complaints)
    finally:
        for logger in loggers:
            logger.removeHandler(complaints)
