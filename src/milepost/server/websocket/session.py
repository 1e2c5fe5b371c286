"""The session of one consumer connection: hello, frames in, deliveries out, end."""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from milepost.concurrency import cancel_and_wait
from milepost.dispatch import Route
from milepost.engine.consumers import consumer as consumer_endings
from milepost.errors import ConsumerClosed, MilepostError, TooLarge
from milepost.log.codec import check_name
from milepost.names import is_loopback_url
from milepost.server.access.authentication import Principal
from milepost.server.http.body import WorkTurns
from milepost.server.problems import INVALID, RequestRefused
from milepost.server.websocket.frames import (
    MAX_FILTER_CHARACTERS,
    AnyClientFrame,
    ConfigureFrame,
    DrainFrame,
    ExtendFrame,
    FrameDelivery,
    HelloFrame,
    LeaveFrame,
    PingFrame,
    SettleFrame,
    decode_frame,
    encode_deliveries,
    frame_ref,
    is_json_object,
    problem_frame,
    routes_from_wire,
)
from milepost.server.websocket.remote_consumer import RemoteConsumer
from milepost.server.websocket.session_end import ConsumerDisposition, SessionEnd, SessionEnded
from milepost.server.websocket.socket import FrameSocket
from milepost.wire.frames import (
    ACCESS_REASON,
    BAD_FRAME_REASON,
    GOING_AWAY_REASON,
    MOVED_REASON,
    REFUSED_REASON,
    DoneFrame,
    LostFrame,
    PongFrame,
    RecallFrame,
    ServerFrame,
    StandbyFrame,
    WelcomeFrame,
)
from milepost.wire.values import refuse_as_invalid

if TYPE_CHECKING:
    from milepost.server.websocket.registry import ConnectionRegistry

logger = logging.getLogger("milepost.server")

HELLO_TIMEOUT_SECONDS = 10.0
"""Seconds within which a client says hello."""
MAX_BATCH_DELIVERIES = 256
"""Deliveries that are taken together."""
MAX_INLINE_ROUTES = 4
"""Routes that are looked at at once."""
MAX_WRONG_FRAMES = 100
"""Frames that may be wrong before a connection ends."""
CLIENT_CHOSEN_REASONS = frozenset({None, consumer_endings.REASON_DRAINED})
"""Endings that the client wanted: what it settled is stored before the close."""
SETTLEMENTS_STORED_SECONDS = 2.5
"""Seconds for that, at most."""
AVOIDED_NODE_SECONDS = 30.0
"""Seconds for which a client is not sent where it could not get."""


class ConsumerSession:
    """One connection: it reads frames and answers, and sends deliveries as they come."""

    def __init__(
        self,
        socket: FrameSocket,
        connections: "ConnectionRegistry",
        address: tuple[str, str],
        principal: Principal,
        *,
        is_local: bool,
    ) -> None:
        self.address = address
        self.principal = principal
        self.remote: RemoteConsumer
        self.released = asyncio.Event()
        """Whether its consumer is nothing of this connection's any more."""
        self._socket = socket
        self._connections = connections
        self._is_local = is_local
        self._over: asyncio.Future[SessionEnd] = asyncio.get_running_loop().create_future()
        self._answering = asyncio.Lock()
        """Held from a frame to its answer, so that the end comes after it."""
        self._standby = False
        self._avoid: frozenset[str] = frozenset()
        self._avoid_until = 0.0
        self._end_when_drained: SessionEnd | None = None
        self._wrong = 0

    # From the beginning to the end

    async def run(self) -> None:
        """Converses until one side ends it."""
        try:
            welcome = await self._begin()
        except SessionEnded as ended:
            await self._socket.end(ended.ending)
            return
        with self._connections.register_session(self):
            ending = SessionEnd(GOING_AWAY_REASON)
            try:
                ending = await self._converse(welcome)
            finally:
                gone = self._connections.release_consumer(self.remote, ending.disposition)
                self._connections.traffic.ended[_end_label(ending)] += 1
                self.released.set()
        if gone is not None and ending.reason in CLIENT_CHOSEN_REASONS:
            await asyncio.wait([gone], timeout=SETTLEMENTS_STORED_SECONDS)
        await self._socket.end(ending)

    async def _converse(self, welcome: WelcomeFrame) -> SessionEnd:
        try:
            await self._greet(welcome)
        except SessionEnded as ended:
            return ended.ending
        tasks = [asyncio.create_task(self._watched(work)) for work in (self._deliver(), self._read())]
        try:
            return await self._over
        finally:
            for task in tasks:
                await cancel_and_wait(task)

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except SessionEnded as ended:
            self.end(ended.ending)
        except ConsumerClosed as closed:
            async with self._answering:
                self.end(_end_of_closed_consumer(closed.reason))
        except Exception:
            logger.exception("a connection of a consumer failed")
            self.end(
                SessionEnd(consumer_endings.REASON_LOST, detail="it is a fault of the server, whose log says more")
            )

    def end(self, ending: SessionEnd) -> None:
        """It ends; the first reason holds. An address is only told to a client that can get there."""
        if not self._over.done():
            goes_there = ending.to is not None and self.may_go(ending.to)
            self._over.set_result(ending if goes_there else replace(ending, to=None))

    # The hello

    async def _begin(self) -> WelcomeFrame:
        """Who comes, and with what; `SessionEnded` if that cannot be."""
        hello = await self._hello()
        try:
            self._connections.check_open()
            self._avoid = frozenset(address.rstrip("/") for address in hello.avoid)
            self._avoid_until = monotonic() + AVOIDED_NODE_SECONDS
            if await self._resume(hello):
                return self._welcome(resumed=True)
            await self._create_consumer(hello)
        except ConsumerClosed as closed:
            raise SessionEnded(_end_of_closed_consumer(closed.reason, str(closed))) from closed
        except (MilepostError, RequestRefused) as error:
            await self._socket.send(problem_frame(error, hello.ref))
            raise SessionEnded(SessionEnd(REFUSED_REASON, detail=str(error))) from error
        return self._welcome(resumed=False)

    async def _hello(self) -> HelloFrame:
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_SECONDS):
                text = await self._socket.text()
        except TimeoutError:
            raise SessionEnded(
                SessionEnd(BAD_FRAME_REASON, detail=f"no hello came within {HELLO_TIMEOUT_SECONDS:g} seconds")
            ) from None
        try:
            return _require_hello(self._frame(text))
        except (RequestRefused, TooLarge) as refused:
            await self._socket.send(problem_frame(refused, frame_ref(text)))
            raise SessionEnded(SessionEnd(REFUSED_REASON, detail=str(refused))) from refused

    async def _resume(self, hello: HelloFrame) -> bool:
        """Goes on with the consumer of a connection that broke, if it is still there."""
        if hello.resume is None:
            return False
        routes = await _compile_routes(hello, self._connections.turns)
        remote = await self._connections.take_over(hello.resume, self.address, self.principal)
        if remote is None:
            return False
        self.remote = remote
        try:
            remote.resume_client(hello.open)
            if routes:
                with refuse_as_invalid("routes"):
                    await remote.consumer.configure(routes=routes)
        except BaseException:
            self._connections.release_consumer(remote, ConsumerDisposition.KEPT)
            raise
        return True

    async def _create_consumer(self, hello: HelloFrame) -> None:
        routes = await _compile_routes(hello, self._connections.turns)
        if hello.consumer is not None:
            check_name("consumer", hello.consumer)
        await self._redirect_to_owner(is_here=self._connections.owns(self.address))
        with refuse_as_invalid("routes"):
            self.remote = self._connections.remote(
                self.address, routes, called=hello.consumer, principal=self.principal
            )
        await self.remote.enter()
        try:
            await self._redirect_to_owner(is_here=not self.remote.consumer.standby)
        except BaseException:
            self._connections.release_consumer(self.remote, ConsumerDisposition.LEAVES)
            raise

    async def _redirect_to_owner(self, *, is_here: bool) -> None:
        """Ends where another server has the subscription."""
        to = None if is_here else await self._connections.address_of_owner(self.address)
        if to is not None and self.may_go(to):
            raise SessionEnded(SessionEnd(MOVED_REASON, to=to))

    def _welcome(self, *, resumed: bool) -> WelcomeFrame:
        consumer = self.remote.consumer
        self._standby = consumer.standby
        return WelcomeFrame(
            consumer=consumer.name,
            node=self._connections.node,
            standby=self._standby,
            timeout=consumer.timeout,
            resume=self.remote.key,
            resume_seconds=self._connections.resume_seconds,
            resumed=resumed,
            open=list(self.remote.open) if resumed else [],
        )

    # Out

    async def _greet(self, welcome: WelcomeFrame) -> None:
        """Whoever comes back is told what was lost meanwhile before anything is answered."""
        await self._socket.send(welcome)
        if lost := self.remote.take_lost():
            await self._socket.send(LostFrame(deliveries=lost))

    async def _deliver(self) -> None:
        """Sends what there is, and waits for more."""
        remote = self.remote
        while True:
            if (standby := remote.consumer.standby) is not self._standby:
                self._standby = standby
                await self._socket.send(StandbyFrame(standby=standby))
            elif lost := remote.take_lost():
                await self._socket.send(LostFrame(deliveries=lost))
                self._end_if_drained()
            elif remote.take_recall():
                await self._socket.send(RecallFrame())
            elif batch := remote.take(MAX_BATCH_DELIVERIES):
                self._check_scope(batch)
                self._connections.traffic.sent[self.address] += len(batch)
                for text in encode_deliveries(batch):
                    await self._socket.send_text(text)
            else:
                await remote.consumer.more()

    def _check_scope(self, batch: Sequence[FrameDelivery]) -> None:
        """End where a message is not for this token: the subscription selected more before, or does now."""
        try:
            if self.principal.scope.categories is not None:
                self.principal.scope.check_streams(delivery.message.stream for delivery in batch)
        except RequestRefused as refused:
            raise SessionEnded(SessionEnd(ACCESS_REASON, detail=str(refused))) from refused

    # In

    async def _read(self) -> None:
        """Reads frames and answers each before the next."""
        while True:
            text = await self._socket.text()
            async with self._answering:
                answer = await self._answer_to(text)
                if answer is not None:
                    await self._socket.send(answer)
            self._end_if_drained()
            # Many frames may be there already: others have their turn between them.
            await asyncio.sleep(0)

    async def _answer_to(self, text: str) -> ServerFrame | None:
        try:
            frame = self._frame(text)
            with refuse_as_invalid(str(type(frame).__struct_config__.tag)):
                return await self._follow(frame)
        except (MilepostError, RequestRefused) as error:
            if isinstance(error, ConsumerClosed):
                raise
            self._wrong += 1
            if self._wrong > MAX_WRONG_FRAMES:
                detail = f"more than {MAX_WRONG_FRAMES} frames could not be: {error}"
                raise SessionEnded(SessionEnd(BAD_FRAME_REASON, ConsumerDisposition.LOST, detail)) from error
            return problem_frame(error, frame_ref(text))

    def _frame(self, text: str) -> AnyClientFrame:
        try:
            return decode_frame(text, self._connections.limits)
        except RequestRefused as refused:
            if not is_json_object(text):
                raise SessionEnded(
                    SessionEnd(BAD_FRAME_REASON, ConsumerDisposition.LOST, str(refused))
                ) from refused
            raise

    async def _follow(self, frame: AnyClientFrame) -> ServerFrame | None:
        """Does what a frame says; the answer."""
        match frame:
            case SettleFrame():
                settled = self.remote.settle(frame)
                self._connections.traffic.settles(self.address, frame, settled)
                return settled if frame.ref is not None or settled.refused else None
            case ExtendFrame():
                return self.remote.extend(frame)
            case PingFrame():
                return PongFrame(ref=frame.ref)
            case ConfigureFrame():
                await self.remote.consumer.configure(routes=await _compile_routes(frame, self._connections.turns))
            case DrainFrame():
                await self.remote.consumer.drain()
            case LeaveFrame():
                raise SessionEnded(SessionEnd(None))
            case HelloFrame():
                raise RequestRefused(INVALID, "There was a hello already", field="type")
        return DoneFrame(ref=frame.ref)

    # What happens elsewhere

    def report_standby(self) -> None:
        """Whether it stands by may have changed."""
        if self.remote.consumer.standby is not self._standby:
            self.remote.consumer.wake()

    @property
    def is_standby(self) -> bool:
        """Whether another process has the subscription."""
        return self.remote.consumer.standby

    def may_go(self, address: str) -> bool:
        """Return True if its client can get there, and has not failed to just now."""
        if is_loopback_url(address) and not self._is_local:
            return False
        return address.rstrip("/") not in self._avoid or monotonic() > self._avoid_until

    def drain_then_end(self, ending: SessionEnd) -> None:
        """Nothing new comes, and it ends when what is open is settled."""
        self._end_when_drained = ending
        self.remote.consumer.suspend()
        self._end_if_drained()

    def _end_if_drained(self) -> None:
        if self._end_when_drained is not None and not self.remote.open:
            self.end(self._end_when_drained)


async def _compile_routes(frame: HelloFrame | ConfigureFrame, turns: WorkTurns) -> list[Route]:
    """Compiling many filters takes its time, between which others have a turn."""
    asked = frame.routes or []
    if len(asked) <= MAX_INLINE_ROUTES:
        return routes_from_wire(asked)
    if (length := sum(len(each.where or "") for each in asked)) > MAX_FILTER_CHARACTERS:
        limit = f"{MAX_FILTER_CHARACTERS:,}"
        raise TooLarge("routes", f"their filters have {length:,} characters together, over the limit of {limit}")
    found: list[Route] = []
    async with turns.alone() as step:
        for each in asked:
            found += routes_from_wire([each])
            await step()
    return found


def _require_hello(frame: AnyClientFrame) -> HelloFrame:
    if not isinstance(frame, HelloFrame):
        raise RequestRefused(INVALID, "The first frame is a hello", field="type")
    return frame


def _end_label(ending: SessionEnd) -> str:
    """How a connection ended, for whoever counts that."""
    if ending.reason is not None:
        return ending.reason
    return "broken" if ending.disposition is ConsumerDisposition.KEPT else consumer_endings.REASON_LEFT


def _end_of_closed_consumer(reason: str, detail: str = "") -> SessionEnd:
    """How a connection ends whose consumer has."""
    return SessionEnd(
        GOING_AWAY_REASON if reason == consumer_endings.REASON_MILEPOST_CLOSED else reason, detail=detail
    )
