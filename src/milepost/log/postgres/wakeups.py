"""Wake-ups: a notification from an append to the readers that sleep.

An append notifies only while a mark in the database says that somebody may be asleep. A reader makes sure of
that mark first, then looks once more, and sleeps only if it found nobody appending; whoever appends later
finds the mark.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import uuid4

import psycopg
from psycopg import sql

from milepost.concurrency import cancel_and_wait
from milepost.errors import MilepostError
from milepost.log.postgres.horizon import SLEEP_COVER_TIME
from milepost.postgres.pool import Connection, Database
from milepost.postgres.statements import Statements

logger = logging.getLogger("milepost.log.wakeups")

NOTIFY_ACTION = "act"
"""What a notification says when a person has done something to a subscription; that of an append says nothing."""
NOTIFY_REPORT_WANTED = "ask"
"""And when somebody wants to know what workers have in hand."""
SLEEP_MARK_TIME = timedelta(seconds=15)
"""How far ahead a mark is set; one serves all sleepers until it no longer covers a sleep."""
PROBE_TIMEOUT_SECONDS = 2.0
"""Seconds that a notification to oneself may take before LISTEN counts as not working."""
RECONNECT_PAUSE_SECONDS = (0.1, 5.0)
"""Shortest and longest wait before listening again after a lost connection, in seconds."""
SUSPECT_AFTER_SECONDS = 1.0
"""Seconds between two looks at whether other connections have failed."""
PROBE_AGAIN_SECONDS = 60.0
"""Seconds before LISTEN is tried again where it did not work."""


class Wakeups:
    """Listens for appends; says whether listening works here at all."""

    def __init__(self, database: Database, statements: Statements) -> None:
        self._database = database
        self._statements = statements
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self.asleep = False
        """Whether a reader waits for a wake-up now."""
        self._listeners: dict[str, set[Callable[[], None]]] = {}
        self.listening = False
        """Whether a notification would arrive. Behind a pooler in transaction mode it does not."""

    def start(self) -> None:
        """Begins to listen; a second call changes nothing."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="milepost-wakeups")

    async def stop(self) -> None:
        """Stops listening."""
        task, self._task = self._task, None
        self.listening = False
        if task is not None:
            await cancel_and_wait(task)

    def clear(self) -> None:
        """Forgets wake-ups so far: call it before the look that decides on sleeping, or on a rest."""
        self._woken.clear()

    @contextmanager
    def on(self, word: str, callback: Callable[[], None]) -> Iterator[None]:
        """Within this block the callback is called whenever a notification says this word: `NOTIFY_ACTION`, for
        instance."""
        self._listeners.setdefault(word, set()).add(callback)
        try:
            yield
        finally:
            self._listeners[word].discard(callback)
            if not self._listeners[word]:
                del self._listeners[word]

    async def mark(self) -> None:
        """Makes sure that appends from now on find a mark."""
        await self._database.execute(
            self._statements.get("mark_sleep"), {"mark": SLEEP_MARK_TIME, "cover": SLEEP_COVER_TIME}
        )

    async def wait(self, seconds: float | None) -> None:
        """Sleeps until an append notifies, or for so long."""
        self.asleep = True
        try:
            await self.wait_heard(seconds)
        finally:
            self.asleep = False

    async def wait_heard(self, seconds: float | None) -> bool:
        """Whether an append notifies within so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return False
        return True

    def wake(self) -> None:
        """Ends a sleep, as an append does."""
        self._woken.set()

    async def _run(self) -> None:
        shortest, longest = RECONNECT_PAUSE_SECONDS
        pause = shortest
        while True:
            try:
                async with await self._database.connect() as connection:
                    await self._listen(connection)
                    pause = shortest
            except (MilepostError, psycopg.Error) as error:
                logger.debug("listening ended, polling meanwhile: %s", error)
            self.listening = False
            self._woken.set()
            await asyncio.sleep(pause)
            pause = min(pause * 2, longest)

    async def _listen(self, connection: Connection) -> None:
        channel = self._statements.schema
        await connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        probe = uuid4().hex
        await self._database.execute(
            "select pg_notify(%(channel)s, %(probe)s)", {"channel": channel, "probe": probe}
        )
        async for notification in connection.notifies(timeout=PROBE_TIMEOUT_SECONDS):
            if notification.payload == probe:
                self.listening = True
                break
        self._woken.set()
        if not self.listening:
            logger.info("notifications do not arrive (a pooler in transaction mode?): polling instead")
            await asyncio.sleep(PROBE_AGAIN_SECONDS)
            return
        # What was said until now has not been heard.
        for word in tuple(self._listeners):
            self._call(word)
        failures = self._database.outage.failures
        # When another connection failed, this one may be to a server that is frozen, or that was the primary once:
        # there nothing is heard, and no error either.
        while self._database.outage.failures == failures:
            async for notification in connection.notifies(timeout=SUSPECT_AFTER_SECONDS):
                if not notification.payload:
                    self._woken.set()
                self._call(notification.payload)

    def _call(self, word: str) -> None:
        for callback in tuple(self._listeners.get(word, ())):
            callback()
