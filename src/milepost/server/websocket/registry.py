"""The registry of a server's consumer connections: admission, resumption, other servers, shutdown."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from time import monotonic
from typing import Any
from uuid import uuid4

from milepost.app import Milepost
from milepost.concurrency import cancel_and_wait
from milepost.dispatch import Route
from milepost.engine.consumers.routes import routes_of
from milepost.errors import MilepostError, UnknownSubscription
from milepost.progress.postgres.leases import PostgresNodes
from milepost.server.access.authentication import Authenticator, Principal
from milepost.server.access.scope_guard import ScopeGuard
from milepost.server.http.body import WorkTurns
from milepost.server.http.traffic import ServerTraffic
from milepost.server.limits import Limits
from milepost.server.nodes import warn_unless_reached
from milepost.server.problems import GOING_AWAY, TOO_MANY, RequestRefused
from milepost.server.shutdown import Shutdown
from milepost.server.websocket.remote_consumer import RemoteConsumer
from milepost.server.websocket.session import ConsumerSession
from milepost.server.websocket.session_end import ConsumerDisposition, SessionEnd, SessionEnded
from milepost.wire.frames import ACCESS_REASON, GOING_AWAY_REASON, MOVED_REASON, RESUMED_REASON

RESUME_SECONDS = 5.0
"""Seconds for which a consumer whose connection broke is kept."""
OWNER_CHECK_SECONDS = 0.5
"""Seconds between two looks at who has the subscriptions that somebody stands by for."""
TOKEN_CHECK_SECONDS = 3.0
"""Seconds between two looks at the tokens of those who are here."""
OTHER_NODES_TIMEOUT_SECONDS = 1.0
"""Seconds for the database to say which other servers there are, when this one stops."""
NODE_HEARTBEAT_SECONDS = 3.0
"""Seconds between two signs of life of a server."""


class ConnectionRegistry:
    """The consumers elsewhere that this server has, and the other servers, as far as they matter to them."""

    def __init__(
        self,
        mp: Milepost,
        limits: Limits,
        authenticator: Authenticator,
        shutdown: Shutdown,
        traffic: ServerTraffic,
        turns: WorkTurns,
        *,
        resume_seconds: float = RESUME_SECONDS,
    ) -> None:
        self.resume_seconds = resume_seconds
        """Seconds for which a consumer whose connection broke is kept."""
        self.traffic = traffic
        self._mp = mp
        self.limits = limits
        self.turns = turns
        self._authenticator = authenticator
        self._shutdown = shutdown
        self.id = uuid4().hex
        """Which server this is: anew at each start."""
        self._sessions: dict[ConsumerSession, None] = {}
        self._kept: dict[str, tuple[RemoteConsumer, asyncio.Task[None]]] = {}
        """Consumers without a connection, by what their clients come back with."""
        self._ending: set[asyncio.Task[None]] = set()
        self._connected = 0
        self._shutdown_end: SessionEnd | None = None
        """What everybody is told once the server stops."""
        self._open = 0
        """How many need what runs behind all this."""
        self._behind: list[asyncio.Task[None]] = []

    # Who is here

    def scope_guard(self, principal: Principal) -> ScopeGuard:
        """What somebody may reach with the scope of their token."""
        return ScopeGuard(self._mp, principal.scope)

    @property
    def node(self) -> str | None:
        """The address of this server, if it has said one."""
        return self._mp.node

    def check_room(self) -> None:
        """Refuses one more than there may be, and everybody when the server stops."""
        if self._shutdown.has_begun:
            raise RequestRefused(GOING_AWAY, "The server is being stopped: ask again, another may answer")
        if self._connected >= self.limits.consumers:
            raise RequestRefused(
                TOO_MANY, f"{self.limits.consumers:,} consumers are connected: ask another server"
            )

    @contextmanager
    def count_connection(self) -> Iterator[None]:
        """Somebody connects."""
        self._connected += 1
        try:
            yield
        finally:
            self._connected -= 1

    @contextmanager
    def register_session(self, session: ConsumerSession) -> Iterator[None]:
        """Somebody has said hello."""
        self._sessions[session] = None
        if self._shutdown_end is not None:
            session.drain_then_end(self._shutdown_end)
        try:
            yield
        finally:
            del self._sessions[session]

    def consumers(self) -> Counter[tuple[str, str]]:
        """How many are connected, by group and name of the subscription."""
        return Counter(session.address for session in self._sessions)

    def check_open(self) -> None:
        """Ends whoever comes while the server stops."""
        if self._shutdown.has_begun:
            raise SessionEnded(SessionEnd(GOING_AWAY_REASON))

    def remote(
        self, address: tuple[str, str], routes: Sequence[Route], *, called: str | None, principal: Principal
    ) -> RemoteConsumer:
        """A consumer that is about to come."""
        return RemoteConsumer(
            self._mp, *address, routes_of(routes or None, {}), called=called, principal=principal
        )

    def release_consumer(
        self, remote: RemoteConsumer, disposition: ConsumerDisposition
    ) -> asyncio.Task[None] | None:
        """The connection of a consumer has ended. If the consumer has too: what ends when its work is stored."""
        remote.leave_with(disposition)
        match disposition:
            case ConsumerDisposition.KEPT:
                self._kept[remote.key] = (remote, self._begin(self._lose_unless_resumed(remote)))
            case ConsumerDisposition.LEAVES | ConsumerDisposition.LOST:
                return self._begin(remote.consumer.gone())
        return None

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Whoever caused it may be cancelled: it comes to its end all the same."""
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    # Coming back

    @property
    def kept_consumers(self) -> list[RemoteConsumer]:
        """Consumers that are kept for clients whose connections broke."""
        return [remote for remote, _ in self._kept.values()]

    async def _lose_unless_resumed(self, remote: RemoteConsumer) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.resume_seconds):
                await self._shutdown.wait()
        del self._kept[remote.key]
        remote.leave_with(ConsumerDisposition.LOST)
        await remote.consumer.gone()

    async def take_over(self, key: str, address: tuple[str, str], principal: Principal) -> RemoteConsumer | None:
        """The consumer of a connection that broke, or is about to; only for the same client."""
        for session in self._sessions:
            if session.remote.key == key and _belongs_to(session.remote, address, principal):
                if await self._take_over_session(session):
                    return session.remote
                break
        remote, waiting = self._kept.get(key, (None, None))
        if (
            remote is None
            or waiting is None
            or not _belongs_to(remote, address, principal)
            or remote.consumer.closed
        ):
            return None
        del self._kept[key]
        await cancel_and_wait(waiting)
        return remote

    async def _take_over_session(self, session: ConsumerSession) -> bool:
        """Ends a connection whose consumer another one wants; False if it had ended by itself."""
        session.end(SessionEnd(RESUMED_REASON, ConsumerDisposition.HANDED_ON))
        try:
            await session.released.wait()
        except BaseException:
            self.release_consumer(session.remote, ConsumerDisposition.KEPT)
            raise
        return session.remote.key not in self._kept and session.remote.consumer.closed is None

    # Other servers

    def owns(self, address: tuple[str, str]) -> bool:
        """Whether this process has a subscription."""
        return self._mp.consumer_registry.owns(*address)

    async def address_of_owner(self, address: tuple[str, str]) -> str | None:
        """The address of another server that has a subscription."""
        owner = await self._nodes.owner(*address)
        return owner.address if owner is not None and owner.address != self.node else None

    @property
    def _nodes(self) -> PostgresNodes:
        return self._mp.services.nodes

    # What runs behind

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Within this block what concerns all is looked after."""
        self._open += 1
        if not self._behind:
            works = (self._live(), self._watch(), self._end_all_at_shutdown(), self._check_own_address())
            self._behind = [asyncio.create_task(work) for work in works]
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                behind, self._behind = self._behind, []
                for task in behind:
                    await cancel_and_wait(task)

    async def _live(self) -> None:
        """Tells where this server is, until it takes no more clients."""
        if self.node is None:
            return
        try:
            while not self._shutdown.has_begun:
                with suppress(MilepostError):
                    await self._nodes.beat(self.id, self.node)
                with suppress(TimeoutError):
                    async with asyncio.timeout(NODE_HEARTBEAT_SECONDS):
                        await self._shutdown.wait()
        finally:
            with suppress(MilepostError):
                await self._nodes.leave(self.id)

    async def _check_own_address(self) -> None:
        if self.node is not None:
            await warn_unless_reached(self.node, self.id)

    async def _watch(self) -> None:
        looked = monotonic()
        while True:
            await asyncio.sleep(OWNER_CHECK_SECONDS)
            with suppress(MilepostError):
                await self._move_standby_sessions()
            if monotonic() - looked >= TOKEN_CHECK_SECONDS:
                looked = monotonic()
                with suppress(MilepostError):
                    await self._end_disallowed()

    async def _move_standby_sessions(self) -> None:
        """Tells who stands by, and sends them to the server that has their subscription, if one has."""
        standing: dict[tuple[str, str], list[ConsumerSession]] = {}
        for session in self._sessions:
            session.report_standby()
            if session.is_standby:
                standing.setdefault(session.address, []).append(session)
        for address, sessions in standing.items():
            to = await self.address_of_owner(address)
            if to is None:
                continue
            for session in sessions:
                if session.may_go(to):
                    session.end(SessionEnd(MOVED_REASON, to=to))

    async def _end_disallowed(self) -> None:
        """End those whose token is no longer in force, or no longer reaches their subscription."""
        for principal, address in {(each.principal, each.address) for each in self._sessions}:
            if (refusal := await self._refusal(principal, address)) is None:
                continue
            for session in list(self._sessions):
                if (session.principal, session.address) == (principal, address):
                    session.end(SessionEnd(ACCESS_REASON, detail=refusal))

    async def _refusal(self, principal: Principal, address: tuple[str, str]) -> str | None:
        """Return why somebody may not stay, if so."""
        try:
            await self._authenticator.check_still_allowed(principal)
            # It may select more than when they came.
            await self.scope_guard(principal).check_subscription(*address)
        except RequestRefused as refused:
            return str(refused)
        except UnknownSubscription:
            # It was deleted: its consumers are told so.
            return None
        return None

    async def _end_all_at_shutdown(self) -> None:
        """When the server stops: whoever has settled what is open is told where to go; at last all are."""
        await self._shutdown.wait()
        self._shutdown_end = SessionEnd(GOING_AWAY_REASON, to=await self._other_node_address())
        for session in list(self._sessions):
            session.drain_then_end(self._shutdown_end)
        await asyncio.sleep(self._shutdown.grace)
        for session in list(self._sessions):
            session.end(self._shutdown_end)

    async def _other_node_address(self) -> str | None:
        """The address of any other server, if that can be known soon."""
        with suppress(MilepostError, TimeoutError):
            async with asyncio.timeout(OTHER_NODES_TIMEOUT_SECONDS):
                others = [node.address for node in await self._nodes.all() if node.address != self.node]
                return random.choice(others) if others else None  # noqa: S311 - anyone will do
        return None


def _belongs_to(remote: RemoteConsumer, address: tuple[str, str], principal: Principal) -> bool:
    return remote.address == address and remote.principal == principal
