"""Pull and settle for a `Milepost`, and wait for messages without polling."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from typing import Any
from uuid import UUID

from milepost.engine.checks import checked, optional, seconds, whole
from milepost.engine.declare.context import ProgressLocation
from milepost.engine.observe.listeners import Listeners
from milepost.engine.pull.claims import PullClaimer, PulledDeliveries, PulledDelivery, PullRound
from milepost.engine.pull.reports import PullEventEmitter, PullReporter
from milepost.engine.pull.scanner import PullScanners
from milepost.engine.pull.settle import (
    DeliveriesOrTokens,
    PullSettleRequest,
    PullSettleResult,
    SettleReason,
    checked_request_id,
)
from milepost.engine.runtime import Runtime
from milepost.errors import MilepostError
from milepost.log.protocol import TransactionLog
from milepost.log.query import PAGE_BYTES
from milepost.progress.deliveries import ClaimOutcome, ClaimReply, ClaimRequest
from milepost.progress.postgres.deliveries import ClaimStatements, PostgresClaims

LISTEN_LINGER_SECONDS = 10.0
"""Seconds for which notifications are listened to after the last one who waited, since that one may come again."""
PULL_POLL_WITHOUT_LISTENING_SECONDS = 0.25
"""Seconds between two looks where notifications do not arrive."""


class PullWakeups:
    """Who waits in this process, of one open `Milepost`. It listens while somebody waits, and a little longer."""

    def __init__(self, runtime: Runtime, stored_claims: PostgresClaims) -> None:
        self._runtime = runtime
        self._stored_claims = stored_claims
        self._waiting = 0
        self._followed: AbstractAsyncContextManager[None] | None = None
        self._leaving: asyncio.TimerHandle | None = None
        self._left: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def of(self, subscription: int) -> AsyncIterator["PullWait"]:
        """Within this block nothing that happens to a subscription is missed."""
        await self._join()
        try:
            with ExitStack() as stack:
                wait = PullWait(self._runtime, self._stored_claims)
                stack.enter_context(self._runtime.log.feed.waking(wait.woken))
                stack.enter_context(self._runtime.services.pull_wakeups(subscription, wait.woken.set))
                yield wait
        finally:
            self._leave()

    async def close(self) -> None:
        """Listens no longer."""
        if self._leaving is not None:
            self._leaving.cancel()
        await self._stop()
        if self._left is not None:
            await self._left

    async def _join(self) -> None:
        self._waiting += 1
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        if self._followed is None:
            self._followed = self._runtime.log.feed.followed()
            await self._followed.__aenter__()
        self._runtime.services.start_listening()

    def _leave(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            self._leaving = asyncio.get_running_loop().call_later(LISTEN_LINGER_SECONDS, self._linger_no_longer)

    def _linger_no_longer(self) -> None:
        self._left = asyncio.create_task(self._stop())

    async def _stop(self) -> None:
        followed, self._followed = self._followed, None
        if followed is None:
            return
        await self._runtime.services.stop_listening()
        await followed.__aexit__(None, None, None)


class PullWait:
    """One who waits."""

    def __init__(self, runtime: Runtime, stored_claims: PostgresClaims) -> None:
        self._services = runtime.services
        self._stored_claims = stored_claims
        self.woken = asyncio.Event()
        """Set when something happened."""

    async def prepare(self) -> None:
        """What happens from now on ends the next sleep: call it before the look that decides on sleeping."""
        self.woken.clear()
        await self._stored_claims.mark()

    async def sleep(self, seconds: float) -> None:
        """Until something happens, or for so long."""
        if not self._services.is_listening:
            seconds = min(seconds, PULL_POLL_WITHOUT_LISTENING_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.woken.wait()


MAX_PULLED_DELIVERIES = 10_000
"""How many deliveries one pull gives at most."""
MAX_PULL_WAIT_SECONDS = 3600
"""Seconds that one pull waits at most."""


class Puller:
    """What `mp.pull` and `mp.settle` do. On a caller's connection it needs no open `Milepost`."""

    def __init__(
        self,
        schema: str,
        progress_location: ProgressLocation,
        log: TransactionLog,
        runtime: Callable[[], Runtime],
        listeners: Listeners,
    ) -> None:
        self._statements = ClaimStatements(schema)
        self._emitter = PullEventEmitter(listeners, self._statements)
        self._progress_location = progress_location
        self._log = log
        self._runtime = runtime
        self._reporter = PullReporter()
        self._watch: PullWakeups | None = None
        self._begun: Runtime | None = None
        self.scanners = PullScanners()

    async def close(self) -> None:
        """Ends what it has begun; the next pull begins anew."""
        watch, self._watch, self._begun = self._watch, None, None
        await self.scanners.close()
        if watch is not None:
            await watch.close()
        await self._emitter.close()

    # Pulling

    async def pull(
        self, group: str, name: str, *, limit: int, wait: float, timeout: float | None
    ) -> PulledDeliveries:
        """Claims what is there, or waits for it, in transactions of our own."""
        longest = checked("wait", checked_pull_wait, wait)
        request = _pull_request(group, name, limit, timeout)
        runtime = await self._begin()
        ends = asyncio.get_running_loop().time() + longest
        round_ = self._round(runtime, request)
        reply = await self._run(round_, runtime, request)
        if longest and not round_.claims.count:
            round_ = await self._wait(runtime, request, reply.id, ends)
        return self._given(await round_.claims.deliveries(runtime.log), more=round_.more)

    async def _wait(self, runtime: Runtime, request: ClaimRequest, subscription: int, ends: float) -> PullRound:
        """Looks again whenever there may be something, until there is or the time is over."""
        if self._watch is None:
            self._watch = PullWakeups(runtime, self._claims(runtime))
        async with self._watch.of(subscription) as wait:
            while True:
                await wait.prepare()
                round_ = self._round(runtime, request)
                await self._run(round_, runtime, request)
                left = ends - asyncio.get_running_loop().time()
                if round_.claims.count or left <= 0:
                    return round_
                await wait.sleep(min(left, round_.pause))

    async def _run(self, round_: PullRound, runtime: Runtime, request: ClaimRequest) -> ClaimReply:
        try:
            reply = await round_.run()
        finally:
            self.scanners.make_room()
        await self._emitter.pulled(runtime, request, reply, round_)
        return reply

    def _round(self, runtime: Runtime, request: ClaimRequest) -> PullRound:
        scanner = self.scanners.of(runtime, request.group, request.name)
        return PullRound(self._claims(runtime), scanner, request)

    def _claims(self, runtime: Runtime) -> PostgresClaims:
        return self._statements.within(runtime.services.transactions)

    async def _begin(self) -> Runtime:
        """An open `Milepost`; if progress is elsewhere, the log has to be the one that it follows."""
        if self._progress_location is ProgressLocation.OUTSIDE:
            raise MilepostError(
                f"progress is kept {self._progress_location.value}: pulling needs it in PostgreSQL"
            )
        runtime = self._runtime()
        if self._begun is None and self._progress_location is ProgressLocation.IN_ANOTHER_DATABASE:
            await runtime.services.begin()
        self._begun = runtime
        return runtime

    # In a caller's transaction

    async def claim(
        self, connection: object, group: str, name: str, *, limit: int, wait: float, timeout: float | None
    ) -> PullClaimer:
        """Claim what is ready in a caller's transaction, which does not wait. The log is not looked at."""
        if wait:
            raise ValueError("wait: a pull in your transaction does not wait")
        request = _pull_request(group, name, limit, timeout)
        claims = PullClaimer(self._statements.on(connection), request)
        reply = await claims.pull()
        self._emitter.know(request, reply)
        return claims

    @property
    def reads_with_caller(self) -> bool:
        """Whether `deliveries_of` needs the caller's connection alone: progress is in the database of the log."""
        return self._progress_location is ProgressLocation.WITH_THE_LOG

    async def deliveries_of(self, claims: PullClaimer, connection: object) -> PulledDeliveries:
        """Load the messages of what was claimed in a caller's transaction."""
        if self.reads_with_caller:
            deliveries = await claims.deliveries(self._log, connection)
        else:
            deliveries = await claims.deliveries(self._runtime().log)
        return self._given(deliveries, more=claims.more)

    def _given(self, deliveries: list[PulledDelivery], *, more: bool) -> PulledDeliveries:
        self._reporter.begun(delivery.claim for delivery in deliveries)
        return PulledDeliveries(deliveries, more=more)

    # Settling

    async def settle(
        self,
        outcomes: Mapping[ClaimOutcome, DeliveriesOrTokens],
        *,
        reason: SettleReason,
        after: float | None,
        timeout: float | None,
        id: UUID | None,
        connection: object | None,
    ) -> PullSettleResult:
        """Ends deliveries whose claims hold, in one transaction: our own, or that of a caller's connection."""
        own = connection is None
        claims = self._claims(self._runtime()) if own else self._statements.on(connection)
        settle_request = PullSettleRequest(claims)
        for outcome, several in outcomes.items():
            settle_request.add(outcome, several, reason)
        settled = await settle_request.run(
            after=checked("after", optional(seconds()), after),
            seconds=checked("timeout", optional(seconds(more=True)), timeout),
            id=checked("id", optional(checked_request_id), id),
        )
        if own and settle_request.news:
            if self._emitter.has_listeners:
                await self._emitter.settled(self._runtime(), settle_request.ended(self._reporter.seconds))
            await self._reporter.note(self._runtime().services.progress, settle_request.news)
        return settled


def _pull_request(group: str, name: str, limit: int, timeout: float | None) -> ClaimRequest:
    return ClaimRequest(
        group=group,
        name=name,
        limit=checked("limit", whole(1, MAX_PULLED_DELIVERIES), limit),
        bytes=PAGE_BYTES,
        seconds=checked("timeout", optional(seconds(more=True)), timeout),
        consumer=f"{socket.gethostname()}-{os.getpid()}",
    )


def checked_pull_wait(value: Any) -> float:
    """How long a pull may wait."""
    longest = seconds()(value)
    if longest > MAX_PULL_WAIT_SECONDS:
        raise ValueError(f"at most {MAX_PULL_WAIT_SECONDS:,} seconds are wanted")
    return longest
