"""One look of whoever pulls: at what is ready, and then at the log."""

import random

import psycopg

from milepost.engine.place import Place
from milepost.engine.pulling.claims import Claims
from milepost.engine.pulling.scanning import Scanning
from milepost.engine.pulling.stock import Found
from milepost.errors import Unavailable
from milepost.progress.pulling import PostgresPulling, Reply, Request

ROUNDS = 8
"""How many parts of the log one look goes through."""
LOSSES = 8
"""How often somebody else may be first with a part of the log before it is left to them."""
POLL = 5.0
"""Seconds until the next look, if nothing wakes whoever waits."""
SHORTEST = 0.1
"""Seconds between two looks at what others have just now."""
BEHIND = (0.002, 0.02)
"""Shortest and longest pause of who came too late for a part of the log, in seconds."""


class Turn:
    """Claims what is there, in transactions of our own."""

    def __init__(self, place: Place, pulling: PostgresPulling, scanning: Scanning, request: Request) -> None:
        self._database = place.services.transactions
        self._pulling = pulling
        self._scanning = scanning
        self.claims = Claims(pulling, self._database, request, own=True)
        self.more = True
        """Whether there may be more right now."""
        self.pause = 0.0
        """If nothing was found: seconds after which it makes sense to look again, unless something happens."""

    async def run(self) -> Reply:
        """Looks; how the subscription stands."""
        likely = await self._scanning.likely(self.claims.room)
        reply = await self._pull(likely)
        if reply.is_overdue and await self._pulling.expire(self._database, reply.id) and self.claims.room:
            reply = await self._pull(None)
        losses = 0
        for _ in range(ROUNDS if likely is None else ROUNDS - 1):
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

    async def _pull(self, found: Found | None) -> Reply:
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
