"""What is said on one connection, from the hello to the end."""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from milepost.dispatch import Route
from milepost.engine.consuming import endings as consumer_endings
from milepost.errors import ConsumerClosed, MilepostError, TooLarge
from milepost.log.codec import check_name
from milepost.log.database import end
from milepost.progress.nodes import is_loopback_url
from milepost.server.access.visitor import Visitor
from milepost.server.problems import INVALID, Refused
from milepost.server.turns import Turns
from milepost.server.websocket.endings import (
    ACCESS,
    BAD_FRAME,
    GOING_AWAY,
    MOVED,
    REFUSED,
    Ended,
    Ending,
    Fate,
)
from milepost.server.websocket.incoming import (
    MAX_FILTER_CHARACTERS,
    Configure,
    Drain,
    Extend,
    Hello,
    Incoming,
    Leave,
    Ping,
    Settle,
    frame_of,
    is_object,
    ref_of,
    routes_of,
)
from milepost.server.websocket.outgoing import (
    Done,
    Lost,
    OneDelivery,
    Outgoing,
    Pong,
    Recall,
    Standby,
    Trouble,
    Welcome,
    frames_of,
)
from milepost.server.websocket.remote import Remote
from milepost.server.websocket.wire import Wire
from milepost.server.wire.values import checked

if TYPE_CHECKING:
    from milepost.server.websocket.hall import Hall

logger = logging.getLogger("milepost.server")

HELLO = 10.0
"""Seconds within which a client says hello."""
AT_ONCE = 256
"""Deliveries that are taken together."""
FEW = 4
"""Routes that are looked at at once."""
PATIENCE = 100
"""Frames that may be wrong before a connection ends."""
BY_ITSELF = frozenset({None, consumer_endings.DRAINED})
"""Endings that the client wanted: what it settled is stored before the close."""
STORED = 2.5
"""Seconds for that, at most."""
AVOIDS = 30.0
"""Seconds for which a client is not sent where it could not get."""


class Conversation:
    """One connection: it reads frames and answers, and sends deliveries as they come."""

    def __init__(
        self, wire: Wire, hall: "Hall", address: tuple[str, str], visitor: Visitor, *, is_local: bool
    ) -> None:
        self.address = address
        self.visitor = visitor
        self.remote: Remote
        self.let_go = asyncio.Event()
        """Whether its consumer is nothing of this connection's any more."""
        self._wire = wire
        self._hall = hall
        self._is_local = is_local
        self._over: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._answering = asyncio.Lock()
        """Held from a frame to its answer, so that the end comes after it."""
        self._standby = False
        self._avoid: frozenset[str] = frozenset()
        self._avoid_until = 0.0
        self._winding_up: Ending | None = None
        self._wrong = 0

    # From the beginning to the end

    async def run(self) -> None:
        """Converses until one side ends it."""
        try:
            welcome = await self._begin()
        except Ended as ended:
            await self._wire.end(ended.ending)
            return
        with self._hall.present(self):
            ending = Ending(GOING_AWAY)
            try:
                ending = await self._converse(welcome)
            finally:
                gone = self._hall.see_off(self.remote, ending.fate)
                self._hall.traffic.ended[_word(ending)] += 1
                self.let_go.set()
        if gone is not None and ending.reason in BY_ITSELF:
            await asyncio.wait([gone], timeout=STORED)
        await self._wire.end(ending)

    async def _converse(self, welcome: Welcome) -> Ending:
        try:
            await self._greet(welcome)
        except Ended as ended:
            return ended.ending
        tasks = [asyncio.create_task(self._watched(work)) for work in (self._deliver(), self._read())]
        try:
            return await self._over
        finally:
            for task in tasks:
                await end(task)

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Ended as ended:
            self.end(ended.ending)
        except ConsumerClosed as closed:
            async with self._answering:
                self.end(_closed(closed.reason))
        except Exception:
            logger.exception("a connection of a consumer failed")
            self.end(Ending(consumer_endings.LOST, detail="it is a fault of the server, whose log says more"))

    def end(self, ending: Ending) -> None:
        """It ends; the first reason holds. An address is only told to a client that can get there."""
        if not self._over.done():
            goes_there = ending.to is not None and self.may_go(ending.to)
            self._over.set_result(ending if goes_there else replace(ending, to=None))

    # The hello

    async def _begin(self) -> Welcome:
        """Who comes, and with what; `Ended` if that cannot be."""
        hello = await self._hello()
        try:
            self._hall.check_open()
            self._avoid = frozenset(address.rstrip("/") for address in hello.avoid)
            self._avoid_until = monotonic() + AVOIDS
            if await self._resume(hello):
                return self._welcome(resumed=True)
            await self._come(hello)
        except ConsumerClosed as closed:
            raise Ended(_closed(closed.reason, str(closed))) from closed
        except (MilepostError, Refused) as error:
            await self._wire.send(Trouble.of(error, hello.ref))
            raise Ended(Ending(REFUSED, detail=str(error))) from error
        return self._welcome(resumed=False)

    async def _hello(self) -> Hello:
        try:
            async with asyncio.timeout(HELLO):
                text = await self._wire.text()
        except TimeoutError:
            raise Ended(Ending(BAD_FRAME, detail=f"no hello came within {HELLO:g} seconds")) from None
        try:
            return _as_hello(self._frame(text))
        except (Refused, TooLarge) as refused:
            await self._wire.send(Trouble.of(refused, ref_of(text)))
            raise Ended(Ending(REFUSED, detail=str(refused))) from refused

    async def _resume(self, hello: Hello) -> bool:
        """Goes on with the consumer of a connection that broke, if it is still there."""
        if hello.resume is None:
            return False
        routes = await _routes(hello, self._hall.turns)
        remote = await self._hall.take_back(hello.resume, self.address, self.visitor)
        if remote is None:
            return False
        self.remote = remote
        try:
            remote.come_back(hello.open)
            if routes:
                with checked("routes"):
                    await remote.consumer.configure(routes=routes)
        except BaseException:
            self._hall.see_off(remote, Fate.KEPT)
            raise
        return True

    async def _come(self, hello: Hello) -> None:
        routes = await _routes(hello, self._hall.turns)
        if hello.consumer is not None:
            check_name("consumer", hello.consumer)
        await self._go_elsewhere(is_here=self._hall.owns(self.address))
        with checked("routes"):
            self.remote = self._hall.remote(self.address, routes, called=hello.consumer, visitor=self.visitor)
        await self.remote.come()
        try:
            await self._go_elsewhere(is_here=not self.remote.consumer.standby)
        except BaseException:
            self._hall.see_off(self.remote, Fate.LEAVES)
            raise

    async def _go_elsewhere(self, *, is_here: bool) -> None:
        """Ends where another server has the subscription."""
        to = None if is_here else await self._hall.elsewhere(self.address)
        if to is not None and self.may_go(to):
            raise Ended(Ending(MOVED, to=to))

    def _welcome(self, *, resumed: bool) -> Welcome:
        consumer = self.remote.consumer
        self._standby = consumer.standby
        return Welcome(
            consumer=consumer.name,
            node=self._hall.node,
            standby=self._standby,
            timeout=consumer.desk.created.declaration.timeout,
            resume=self.remote.key,
            resume_seconds=self._hall.resume_seconds,
            resumed=resumed,
            open=list(self.remote.open) if resumed else [],
        )

    # Out

    async def _greet(self, welcome: Welcome) -> None:
        """Whoever comes back is told what was lost meanwhile before anything is answered."""
        await self._wire.send(welcome)
        if lost := self.remote.take_lost():
            await self._wire.send(Lost(deliveries=lost))

    async def _deliver(self) -> None:
        """Sends what there is, and waits for more."""
        remote = self.remote
        while True:
            if (standby := remote.consumer.standby) is not self._standby:
                self._standby = standby
                await self._wire.send(Standby(standby=standby))
            elif lost := remote.take_lost():
                await self._wire.send(Lost(deliveries=lost))
                self._wound_up()
            elif remote.take_recall():
                await self._wire.send(Recall())
            elif batch := remote.take(AT_ONCE):
                self._check_scope(batch)
                self._hall.traffic.sent[self.address] += len(batch)
                for text in frames_of(batch):
                    await self._wire.send_text(text)
            else:
                await remote.consumer.more()

    def _check_scope(self, batch: Sequence[OneDelivery]) -> None:
        """End where a message is not for this token: the subscription selected more before, or does now."""
        try:
            if self.visitor.scope.categories is not None:
                self.visitor.scope.check_streams(delivery.message.stream for delivery in batch)
        except Refused as refused:
            raise Ended(Ending(ACCESS, detail=str(refused))) from refused

    # In

    async def _read(self) -> None:
        """Reads frames and answers each before the next."""
        while True:
            text = await self._wire.text()
            async with self._answering:
                answer = await self._answer_to(text)
                if answer is not None:
                    await self._wire.send(answer)
            self._wound_up()
            # Many frames may be there already: others have their turn between them.
            await asyncio.sleep(0)

    async def _answer_to(self, text: str) -> Outgoing | None:
        try:
            frame = self._frame(text)
            with checked(type(frame).__name__.lower()):
                return await self._follow(frame)
        except (MilepostError, Refused) as error:
            if isinstance(error, ConsumerClosed):
                raise
            self._wrong += 1
            if self._wrong > PATIENCE:
                detail = f"more than {PATIENCE} frames could not be: {error}"
                raise Ended(Ending(BAD_FRAME, Fate.LOST, detail)) from error
            return Trouble.of(error, ref_of(text))

    def _frame(self, text: str) -> Incoming:
        try:
            return frame_of(text, self._hall.limits)
        except Refused as refused:
            if not is_object(text):
                raise Ended(Ending(BAD_FRAME, Fate.LOST, str(refused))) from refused
            raise

    async def _follow(self, frame: Incoming) -> Outgoing | None:
        """Does what a frame says; the answer."""
        match frame:
            case Settle():
                settled = self.remote.settle(frame)
                self._hall.traffic.settles(self.address, frame, settled)
                return settled if frame.ref is not None or settled.refused else None
            case Extend():
                return self.remote.extend(frame)
            case Ping():
                return Pong(ref=frame.ref)
            case Configure():
                await self.remote.consumer.configure(routes=await _routes(frame, self._hall.turns))
            case Drain():
                await self.remote.consumer.drain()
            case Leave():
                raise Ended(Ending(None))
            case Hello():
                raise Refused(INVALID, "There was a hello already", field="type")
        return Done(ref=frame.ref)

    # What happens elsewhere

    def look(self) -> None:
        """Whether it stands by may have changed."""
        if self.remote.consumer.standby is not self._standby:
            self.remote.consumer.look()

    @property
    def stands_by(self) -> bool:
        """Whether another process has the subscription."""
        return self.remote.consumer.standby

    def may_go(self, address: str) -> bool:
        """Return True if its client can get there, and has not failed to just now."""
        if is_loopback_url(address) and not self._is_local:
            return False
        return address.rstrip("/") not in self._avoid or monotonic() > self._avoid_until

    def wind_up(self, ending: Ending) -> None:
        """Nothing new comes, and it ends when what is open is settled."""
        self._winding_up = ending
        self.remote.consumer.suspend()
        self._wound_up()

    def _wound_up(self) -> None:
        if self._winding_up is not None and not self.remote.open:
            self.end(self._winding_up)


async def _routes(frame: Hello | Configure, turns: Turns) -> list[Route]:
    """Compiling many filters takes its time, between which others have a turn."""
    asked = frame.routes or []
    if len(asked) <= FEW:
        return routes_of(asked)
    if (length := sum(len(each.where or "") for each in asked)) > MAX_FILTER_CHARACTERS:
        limit = f"{MAX_FILTER_CHARACTERS:,}"
        raise TooLarge("routes", f"their filters have {length:,} characters together, over the limit of {limit}")
    found: list[Route] = []
    async with turns.alone() as step:
        for each in asked:
            found += routes_of([each])
            await step()
    return found


def _as_hello(frame: Incoming) -> Hello:
    if not isinstance(frame, Hello):
        raise Refused(INVALID, "The first frame is a hello", field="type")
    return frame


def _word(ending: Ending) -> str:
    """How a connection ended, for whoever counts that."""
    if ending.reason is not None:
        return ending.reason
    return "broken" if ending.fate is Fate.KEPT else consumer_endings.LEFT


def _closed(reason: str, detail: str = "") -> Ending:
    """How a connection ends whose consumer has."""
    return Ending(GOING_AWAY if reason == consumer_endings.CLOSED else reason, detail=detail)
