"""Pulls and settles for a `Milepost`."""

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from milepost.engine.kept import Kept
from milepost.engine.listeners import Listeners
from milepost.engine.place import Place
from milepost.engine.pulling.claims import Claims
from milepost.engine.pulling.pulled import Pulled, PulledDelivery
from milepost.engine.pulling.reporting import PullReporting
from milepost.engine.pulling.scannings import Scannings
from milepost.engine.pulling.settling import Reason, Settled, Settling, Several, a_uuid
from milepost.engine.pulling.telling import PullTelling
from milepost.engine.pulling.turn import Turn
from milepost.engine.pulling.watching import Watch
from milepost.engine.values import checked, optional, seconds, whole
from milepost.errors import MilepostError
from milepost.log.connections import Executor
from milepost.log.reader import PAGE_BYTES, Reader
from milepost.progress.pulling import Outcome, PostgresPulling, Reply, Request

MOST = 10_000
"""How many deliveries one pull gives at most."""
LONGEST_WAIT = 3600
"""Seconds that one pull waits at most."""


class Puller:
    """What `mp.pull` and `mp.settle` do. On a caller's connection it needs no open `Milepost`."""

    def __init__(
        self, schema: str, kept: Kept, reader: Reader, place: Callable[[], Place], listeners: Listeners
    ) -> None:
        self._pulling = PostgresPulling(schema)
        self._telling = PullTelling(listeners, self._pulling, reader)
        self._kept = kept
        self._reader = reader
        self._place = place
        self._reporting = PullReporting()
        self._watch: Watch | None = None
        self._begun: Place | None = None
        self._scannings = Scannings()

    async def close(self) -> None:
        """Ends what it has begun; the next pull begins anew."""
        watch, self._watch, self._begun = self._watch, None, None
        await self._scannings.close()
        if watch is not None:
            await watch.close()
        await self._telling.close()

    # Pulling

    async def pull(self, group: str, name: str, *, limit: int, wait: float, timeout: float | None) -> Pulled:
        """Claims what is there, or waits for it, in transactions of our own."""
        longest = checked("wait", checked_wait, wait)
        request = _request(group, name, limit, timeout)
        place = await self._begin()
        ends = asyncio.get_running_loop().time() + longest
        turn = self._turn(place, request)
        reply = await self._run(turn, place, request)
        if longest and not turn.claims.count:
            turn = await self._wait(place, request, reply.id, ends)
        return self._given(await turn.claims.deliveries(self._reader, place.log.database), more=turn.more)

    async def _wait(self, place: Place, request: Request, subscription: int, ends: float) -> Turn:
        """Looks again whenever there may be something, until there is or the time is over."""
        if self._watch is None:
            self._watch = Watch(place, self._pulling)
        async with self._watch.of(subscription) as wait:
            while True:
                await wait.prepare()
                turn = self._turn(place, request)
                await self._run(turn, place, request)
                left = ends - asyncio.get_running_loop().time()
                if turn.claims.count or left <= 0:
                    return turn
                await wait.sleep(min(left, turn.pause))

    async def _run(self, turn: Turn, place: Place, request: Request) -> Reply:
        try:
            reply = await turn.run()
        finally:
            self._scannings.make_room()
        await self._telling.pulled(place, request, reply, turn)
        return reply

    def _turn(self, place: Place, request: Request) -> Turn:
        scanning = self._scannings.of(place, request.group, request.name)
        return Turn(place, self._pulling, scanning, request)

    async def _begin(self) -> Place:
        """An open `Milepost`; if progress is elsewhere, the log has to be the one that it follows."""
        if self._kept is Kept.OUTSIDE:
            raise MilepostError(f"progress is kept {self._kept.value}: pulling needs it in PostgreSQL")
        place = self._place()
        if self._begun is None and self._kept is Kept.IN_ANOTHER_DATABASE:
            await place.services.begin()
        self._begun = place
        return place

    # In a caller's transaction

    async def claim(
        self, executor: Executor, group: str, name: str, *, limit: int, timeout: float | None
    ) -> Claims:
        """Claims what is ready; the log is not looked at."""
        request = _request(group, name, limit, timeout)
        claims = Claims(self._pulling, executor, request, own=False)
        reply = await claims.pull()
        self._telling.know(request, reply)
        return claims

    async def brought(self, claims: Claims, executor: Executor) -> Pulled:
        """What was claimed there, with its messages."""
        log = executor if self._kept is Kept.WITH_THE_LOG else self._place().log.database
        return self._given(await claims.deliveries(self._reader, log), more=claims.more)

    def _given(self, deliveries: list[PulledDelivery], *, more: bool) -> Pulled:
        self._reporting.begun(delivery.claim for delivery in deliveries)
        return Pulled(deliveries, more=more)

    # Settling

    async def settle(
        self,
        outcomes: Mapping[Outcome, Several],
        *,
        reason: Reason,
        after: float | None,
        timeout: float | None,
        id: UUID | None,
        executor: Executor | None,
    ) -> Settled:
        """Ends deliveries whose claims hold, in one transaction: our own, or that of a caller's connection."""
        settling = Settling(self._pulling)
        for outcome, several in outcomes.items():
            settling.add(outcome, several, reason)
        settled = await settling.run(
            self._place().services.transactions if executor is None else executor,
            own=executor is None,
            after=checked("after", optional(seconds()), after),
            seconds=checked("timeout", optional(seconds(more=True)), timeout),
            id=checked("id", optional(a_uuid), id),
        )
        if executor is None and settling.news:
            if self._telling.is_heard:
                await self._telling.settled(self._place(), settling.ended(self._reporting.seconds))
            await self._reporting.note(self._place().services.progress, settling.news)
        return settled


def _request(group: str, name: str, limit: int, timeout: float | None) -> Request:
    return Request(
        group=group,
        name=name,
        limit=checked("limit", whole(1, MOST), limit),
        bytes=PAGE_BYTES,
        seconds=checked("timeout", optional(seconds(more=True)), timeout),
        consumer=f"{socket.gethostname()}-{os.getpid()}",
    )


def checked_wait(value: Any) -> float:
    """How long a pull may wait."""
    longest = seconds()(value)
    if longest > LONGEST_WAIT:
        raise ValueError(f"at most {LONGEST_WAIT:,} seconds are wanted")
    return longest
