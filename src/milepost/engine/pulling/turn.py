"""One look of whoever pulls: at what is ready, and then at the log."""

import asyncio
import random
from math import inf
from time import monotonic

import psycopg

from milepost.engine.place import Place
from milepost.engine.pulling.claims import Claims
from milepost.engine.pulling.scanning import Scanning
from milepost.engine.pulling.stock import Found
from milepost.errors import Unavailable
from milepost.progress.pulling import Expired, PostgresPulling, Reply, Request

ROUNDS = 8
"""How many parts of the log one look goes through."""
LOSSES = 8
"""How often somebody else may be first with a part of the log before it is left to them."""
POLL = 5.0
"""Seconds until the next look, if nothing wakes whoever waits."""
SHORTEST = 0.1
"""Seconds between two looks at what others have just now."""
PATIENCE = 0.1
"""Seconds to wait for others of this process who offer a part of the log."""
BEHIND = (0.002, 0.02)
"""Shortest and longest pause of who came too late for a part of the log, in seconds."""


class Turn:
    """Claims what is there, in transactions of our own."""

    def __init__(self, place: Place, pulling: PostgresPulling, scanning: Scanning, request: Request) -> None:
        self._database = place.services.transactions
        self._pulling = pulling
        self._scanning = scanning
        self.claims = Claims(pulling, self._database, request, own=True)
        self.asked = -inf
        """When the last question was asked, by the monotonic clock: what it says may be as old."""
        self.more = True
        """Whether there may be more right now."""
        self.expired: list[Expired] = []
        """What others had, and did not settle in time."""
        self.pause = 0.0
        """If nothing was found: seconds after which it makes sense to look again, unless something happens."""

    async def run(self) -> Reply:
        """Looks; how the subscription stands."""
        reply = await self._pull_likely()
        looks = ROUNDS if reply is None else ROUNDS - 1
        if reply is None:
            reply = await self._pull(None)
        try:
            return await self._go_on(reply, looks)
        except Unavailable:
            if not self.claims.count:
                raise
            # What is claimed is not to wait until its claim expires.
            return reply

    async def _go_on(self, reply: Reply, looks: int) -> Reply:
        """Looks further, until there is no room or nothing more."""
        if reply.is_overdue:
            self.expired = await self._pulling.expire(self._database, reply.id)
            if self.expired and self.claims.room:
                reply = await self._pull(None)
        losses = 0
        for _ in range(looks):
            if not self.claims.room or losses == LOSSES:
                break
            found = None if reply.rests else await self._scanning.next(reply, self.claims.room)
            if found is None:
                self.more = False
                self.pause = _until(reply)
                break
            reply = await self._pull(found)
            if reply.outcome in ("lost", "stale"):
                losses += 1
                self.pause = random.uniform(*BEHIND)  # noqa: S311 - it spreads those who come too late
            elif reply.outcome != "converted":
                self.pause = _until(reply)
                break
        return reply

    async def _pull_likely(self) -> Reply | None:
        """Offers what probably comes next, one after the other in this process: only one can be first with it."""
        offering = self._scanning.offering
        try:
            async with asyncio.timeout(PATIENCE):
                await offering.acquire()
        except TimeoutError:
            return None
        try:
            likely = await self._scanning.likely(self.claims.room)
            return None if likely is None else await self._pull(likely)
        finally:
            offering.release()

    async def _pull(self, found: Found | None) -> Reply:
        self.asked = monotonic()
        try:
            reply = await self.claims.pull(found)
        except Unavailable as error:
            if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                raise
            # Somebody has the lane for long.
            reply = await self.claims.pull()
        self._scanning.learn(reply)
        return reply


def _until(reply: Reply) -> float:
    """Seconds until something is due or expires, as far as that is known."""
    return POLL if reply.wait is None else min(max(reply.wait, SHORTEST), POLL)
