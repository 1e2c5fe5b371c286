"""Everybody who is connected: how many, for how long, and what concerns all of them."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from time import monotonic
from typing import Any
from uuid import uuid4

from milepost.app import Milepost
from milepost.dispatch import Route
from milepost.engine.consuming.routing import routes_of
from milepost.errors import MilepostError, UnknownSubscription
from milepost.log.database import end
from milepost.progress.nodes import PostgresNodes
from milepost.server.access.entrance import Entrance
from milepost.server.access.reach import Reach
from milepost.server.access.visitor import Visitor
from milepost.server.limits import Limits
from milepost.server.problems import GOING_AWAY as STOPPED
from milepost.server.problems import TOO_MANY, Refused
from milepost.server.reaching import check_reached
from milepost.server.stopping import Stopping
from milepost.server.traffic import Traffic
from milepost.server.turns import Turns
from milepost.server.websocket.conversation import Conversation
from milepost.server.websocket.endings import ACCESS, GOING_AWAY, MOVED, RESUMED, Ended, Ending, Fate
from milepost.server.websocket.remote import Remote

RESUME = 5.0
"""Seconds for which a consumer whose connection broke is kept."""
LOOK = 0.5
"""Seconds between two looks at who has the subscriptions that somebody stands by for."""
TOKENS = 3.0
"""Seconds between two looks at the tokens of those who are here."""
SOON = 1.0
"""Seconds for the database to say which other servers there are, when this one stops."""
BEAT = 3.0
"""Seconds between two signs of life of a server."""


class Hall:
    """The consumers elsewhere that this server has, and the other servers, as far as they matter to them."""

    resume_seconds = RESUME

    def __init__(
        self,
        mp: Milepost,
        limits: Limits,
        entrance: Entrance,
        stopping: Stopping,
        traffic: Traffic,
        turns: Turns,
    ) -> None:
        self.traffic = traffic
        self._mp = mp
        self.limits = limits
        self.turns = turns
        self._entrance = entrance
        self._stopping = stopping
        self.id = uuid4().hex
        """Which server this is: anew at each start."""
        self._present: dict[Conversation, None] = {}
        self._kept: dict[str, tuple[Remote, asyncio.Task[None]]] = {}
        """Consumers without a connection, by what their clients come back with."""
        self._ending: set[asyncio.Task[None]] = set()
        self._connected = 0
        self._farewell: Ending | None = None
        """What everybody is told once the server stops."""
        self._open = 0
        """How many need what runs behind all this."""
        self._behind: list[asyncio.Task[None]] = []

    # Who is here

    def reach(self, visitor: Visitor) -> Reach:
        """What somebody may reach with the scope of their token."""
        return Reach(self._mp, visitor.scope)

    @property
    def node(self) -> str | None:
        """The address of this server, if it has said one."""
        return self._mp.node

    def check_room(self) -> None:
        """Refuses one more than there may be, and everybody when the server stops."""
        if self._stopping.begun:
            raise Refused(STOPPED, "The server is being stopped: ask again, another may answer")
        if self._connected >= self.limits.consumers:
            raise Refused(TOO_MANY, f"{self.limits.consumers:,} consumers are connected: ask another server")

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Somebody connects."""
        self._connected += 1
        try:
            yield
        finally:
            self._connected -= 1

    @contextmanager
    def present(self, conversation: Conversation) -> Iterator[None]:
        """Somebody has said hello."""
        self._present[conversation] = None
        if self._farewell is not None:
            conversation.wind_up(self._farewell)
        try:
            yield
        finally:
            del self._present[conversation]

    def consumers(self) -> Counter[tuple[str, str]]:
        """How many are connected, by group and name of the subscription."""
        return Counter(conversation.address for conversation in self._present)

    def check_open(self) -> None:
        """Ends whoever comes while the server stops."""
        if self._stopping.begun:
            raise Ended(Ending(GOING_AWAY))

    def remote(
        self, address: tuple[str, str], routes: Sequence[Route], *, called: str | None, visitor: Visitor
    ) -> Remote:
        """A consumer that is about to come."""
        return Remote(self._mp, *address, routes_of(routes or None, {}), called=called, visitor=visitor)

    def see_off(self, remote: Remote, fate: Fate) -> asyncio.Task[None] | None:
        """The connection of a consumer has ended. If the consumer has too: what ends when its work is stored."""
        remote.go(fate)
        match fate:
            case Fate.KEPT:
                self._kept[remote.key] = (remote, self._begin(self._lose_in_time(remote)))
            case Fate.LEAVES | Fate.LOST:
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
    def away(self) -> list[Remote]:
        """Consumers that are kept for clients whose connections broke."""
        return [remote for remote, _ in self._kept.values()]

    async def _lose_in_time(self, remote: Remote) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(RESUME):
                await self._stopping.wait()
        del self._kept[remote.key]
        remote.go(Fate.LOST)
        await remote.consumer.gone()

    async def take_back(self, key: str, address: tuple[str, str], visitor: Visitor) -> Remote | None:
        """The consumer of a connection that broke, or is about to; only for the same client."""
        for conversation in self._present:
            if conversation.remote.key == key and _is_of(conversation.remote, address, visitor):
                if await self._taken_over(conversation):
                    return conversation.remote
                break
        remote, waiting = self._kept.get(key, (None, None))
        if remote is None or waiting is None or not _is_of(remote, address, visitor) or remote.consumer.closed:
            return None
        del self._kept[key]
        await end(waiting)
        return remote

    async def _taken_over(self, conversation: Conversation) -> bool:
        """Ends a connection whose consumer another one wants; False if it had ended by itself."""
        conversation.end(Ending(RESUMED, Fate.HANDED_ON))
        try:
            await conversation.let_go.wait()
        except BaseException:
            self.see_off(conversation.remote, Fate.KEPT)
            raise
        return conversation.remote.key not in self._kept and conversation.remote.consumer.closed is None

    # Other servers

    def owns(self, address: tuple[str, str]) -> bool:
        """Whether this process has a subscription."""
        return self._mp.desks.owns(*address)

    async def elsewhere(self, address: tuple[str, str]) -> str | None:
        """The address of another server that has a subscription."""
        owner = await self._nodes.owner(*address)
        return owner.address if owner is not None and owner.address != self.node else None

    @property
    def _nodes(self) -> PostgresNodes:
        database = self._mp.services.database or self._mp.log.database
        return PostgresNodes(database, self._mp.log.statements.schema)

    # What runs behind

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Within this block what concerns all is looked after."""
        self._open += 1
        if not self._behind:
            works = (self._live(), self._watch(), self._end_all(), self._look_for_itself())
            self._behind = [asyncio.create_task(work) for work in works]
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                behind, self._behind = self._behind, []
                for task in behind:
                    await end(task)

    async def _live(self) -> None:
        """Tells where this server is, until it takes no more clients."""
        if self.node is None:
            return
        try:
            while not self._stopping.begun:
                with suppress(MilepostError):
                    await self._nodes.beat(self.id, self.node)
                with suppress(TimeoutError):
                    async with asyncio.timeout(BEAT):
                        await self._stopping.wait()
        finally:
            with suppress(MilepostError):
                await self._nodes.leave(self.id)

    async def _look_for_itself(self) -> None:
        if self.node is not None:
            await check_reached(self.node, self.id)

    async def _watch(self) -> None:
        looked = monotonic()
        while True:
            await asyncio.sleep(LOOK)
            with suppress(MilepostError):
                await self._send_on()
            if monotonic() - looked >= TOKENS:
                looked = monotonic()
                with suppress(MilepostError):
                    await self._see_out()

    async def _send_on(self) -> None:
        """Tells who stands by, and sends them to the server that has their subscription, if one has."""
        standing: dict[tuple[str, str], list[Conversation]] = {}
        for conversation in self._present:
            conversation.look()
            if conversation.stands_by:
                standing.setdefault(conversation.address, []).append(conversation)
        for address, conversations in standing.items():
            to = await self.elsewhere(address)
            if to is None:
                continue
            for conversation in conversations:
                if conversation.may_go(to):
                    conversation.end(Ending(MOVED, to=to))

    async def _see_out(self) -> None:
        """End those whose token is no longer in force, or no longer reaches their subscription."""
        for visitor, address in {(each.visitor, each.address) for each in self._present}:
            if (refusal := await self._refusal(visitor, address)) is None:
                continue
            for conversation in list(self._present):
                if (conversation.visitor, conversation.address) == (visitor, address):
                    conversation.end(Ending(ACCESS, detail=refusal))

    async def _refusal(self, visitor: Visitor, address: tuple[str, str]) -> str | None:
        """Return why somebody may not stay, if so."""
        try:
            await self._entrance.check_stay(visitor)
            # It may select more than when they came.
            await self.reach(visitor).check_subscription(*address)
        except Refused as refused:
            return str(refused)
        except UnknownSubscription:
            # It was deleted: its consumers are told so.
            return None
        return None

    async def _end_all(self) -> None:
        """When the server stops: whoever has settled what is open is told where to go; at last all are."""
        await self._stopping.wait()
        self._farewell = Ending(GOING_AWAY, to=await self._another())
        for conversation in list(self._present):
            conversation.wind_up(self._farewell)
        await asyncio.sleep(self._stopping.grace)
        for conversation in list(self._present):
            conversation.end(self._farewell)

    async def _another(self) -> str | None:
        """The address of any other server, if that can be known soon."""
        with suppress(MilepostError, TimeoutError):
            async with asyncio.timeout(SOON):
                others = [node.address for node in await self._nodes.all() if node.address != self.node]
                return random.choice(others) if others else None  # noqa: S311 - anyone will do
        return None


def _is_of(remote: Remote, address: tuple[str, str], visitor: Visitor) -> bool:
    return remote.address == address and remote.visitor == visitor
