"""Times in which a database cannot be reached: told when they begin and when they end, whoever notices."""

import asyncio
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from threading import Lock
from time import monotonic
from weakref import WeakValueDictionary

from psycopg.conninfo import conninfo_to_dict

logger = logging.getLogger("milepost.log.database")

_outages: WeakValueDictionary[str, "Outage"] = WeakValueDictionary()
_lock = Lock()


def outage_of(conninfo: str) -> "Outage":
    """Return what all connections of this process to one database share."""
    given = conninfo_to_dict(conninfo)
    place = " ".join(str(given.get(name, "")) for name in ("host", "hostaddr", "port", "dbname"))
    with _lock:
        outage = _outages.get(place)
        if outage is None:
            _outages[place] = outage = Outage()
        return outage


class Outage:
    """Logs one line when a database is lost and one when it is back, and wakes those who wait for that.

    Used by several threads: a worker's heart has an event loop of its own.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._began: float | None = None
        self._failed = -inf
        """When a connection failed last."""
        self._failures = 0
        self.failures = 0
        """How often a connection failed, ever."""
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def failed(self, error: BaseException, opened_at: float = inf) -> None:
        """Note that a connection could not be had, or ended under a statement.

        `opened_at` is when it was opened, by `time.monotonic`: one of before the last
        failure says nothing new.
        """
        with self._lock:
            self.failures += 1
            is_old = self._began is None and opened_at < self._failed
            self._failed = monotonic()
            if is_old:
                return
            self._failures += 1
            if self._began is not None:
                return
            self._began = monotonic()
        logger.warning("connection lost, trying again: %s", error)

    def succeeded(self) -> None:
        """Note that a statement was answered."""
        # Asked after each statement, and nearly always there is nothing to end.
        if not self._failures:
            return
        with self._lock:
            began, failures, waiting = self._began, self._failures, list(self._waiting)
            self._began, self._failures = None, 0
        if began is None:
            return
        logger.warning("connected again after %.1f s and %d failed attempts", monotonic() - began, failures)
        for loop, event in waiting:
            # A loop that has ended waits for nothing.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(event.set)

    @contextmanager
    def waking(self, event: asyncio.Event) -> Iterator[None]:
        """Within this block set an event of this loop's whenever the database is back."""
        waiting = (asyncio.get_running_loop(), event)
        with self._lock:
            self._waiting.add(waiting)
        try:
            yield
        finally:
            with self._lock:
                self._waiting.discard(waiting)


class PoolLogFilter(logging.Filter):
    """Keeps the driver's pool from telling of each attempt to connect: an outage is told once."""

    def __init__(self, pools: str, connection: type) -> None:
        super().__init__()
        self._pools = re.compile(pools)
        self._connection = connection

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False for what the pool says of its own connections."""
        args = record.args if isinstance(record.args, tuple) else ()
        return not any(
            isinstance(arg, self._connection) or (isinstance(arg, str) and self._pools.fullmatch(arg))
            for arg in args
        )
