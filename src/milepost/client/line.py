"""The connection of a consumer: it breaks and comes back, at another node if need be."""

import asyncio
import logging
import ssl
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from milepost.client import frames
from milepost.client.backoff import Backoff
from milepost.client.frames import Received, routes_sent
from milepost.client.node import Node, path
from milepost.client.nodes import Nodes
from milepost.client.problems import error_of
from milepost.client.requests import Unanswered
from milepost.client.socket import Socket, opened
from milepost.complaints import Complaints
from milepost.engine.consuming.endings import DELETED, DRAINED, LOST, STOPPED, TOO_MANY
from milepost.errors import ConsumerClosed, MilepostError, NotAllowed, Unavailable, UnknownSubscription

if TYPE_CHECKING:
    from milepost.client.consumer import Consumer

HELLO: Final = 15.0
"""Seconds within which a server answers a hello."""
LEAVING: Final = 3.0
"""Seconds within which a server lets a consumer go."""
MOVES: Final = 5
"""How often in a row a client lets itself be sent on before it stays where it is."""
MOST_RESUME: Final = 60.0
"""Seconds for which a server may promise to keep a consumer."""
SLACK: Final = 1000
"""Deliveries beyond what was asked for that a server may send: what was asked for may just have changed."""
ACCESS: Final = "access"
GOING_AWAY: Final = "going away"
BAD_FRAME: Final = "bad frame"

FINAL: Final = frozenset({DRAINED, DELETED, TOO_MANY, ACCESS, BAD_FRAME, STOPPED})
"""Reasons after which a consumer does not come back."""

_logger = logging.getLogger("milepost.client")


class Ended(Exception):
    """The server has ended the conversation."""

    def __init__(self, frame: frames.End) -> None:
        self.reason = frame.reason[:100]
        self.detail = frame.detail[:1000]
        self.to = frame.to
        super().__init__(self.reason)


class Line:
    """Keeps a consumer connected, from its beginning to its end."""

    def __init__(
        self,
        consumer: "Consumer",
        address: tuple[str, str],
        nodes: Nodes,
        *,
        headers: Mapping[str, str],
        tls: ssl.SSLContext,
        patience: float,
        largest: int,
    ) -> None:
        self._consumer = consumer
        self._name = "/".join(address)
        self._path = path("subscriptions", *address, "consume")
        self._nodes = nodes
        self._headers = headers
        self._tls = tls
        self._patience = patience
        self._largest = largest
        self._complaints = Complaints(_logger, f"the consumer of {self._name}")
        self._backoff = Backoff()
        self._task: asyncio.Task[None] | None = None
        self._welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._socket: Socket | None = None
        self._spoken = asyncio.Event()
        self._requests: dict[str, asyncio.Future[None]] = {}
        self._outgoing: list[dict[str, Any]] = []
        self._number = 0
        self._next: Node | None = None
        """Where it was told to go."""
        self._told: Node | None = None
        """Where it goes because it was told to."""
        self._last: Node | None = None
        """Where it was, and may have been kept."""
        self._resume: str | None = None
        self._kept_until = 0.0
        self._moves = 0
        self._at: Node | None = None
        """Where it is, or was last."""
        self._kept_for = 0.0
        self._told_open: frozenset[int] = frozenset()
        self._pinging: tuple[str, frozenset[int]] | None = None
        """What is asked for after coming back, and what was not open any more."""

    # Coming and going

    async def begin(self) -> None:
        """Connects; raises what keeps it from that."""
        self._task = asyncio.create_task(self._live(asyncio.get_running_loop().time() + self._patience))
        await asyncio.shield(self._welcomed)

    async def end(self) -> None:
        """Leaves: when this returns, others can have what was open, if a server was there to be told."""
        task, self._task = self._task, None
        if self._socket is not None:
            with suppress(MilepostError, TimeoutError):
                async with asyncio.timeout(LEAVING):
                    await self._socket.send({"type": "leave"})
                    await self._socket.wait_closed()
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if self._welcomed.done() and not self._welcomed.cancelled():
            self._welcomed.exception()
        self._refuse_requests(ConsumerClosed(self._consumer.closed or LOST))

    async def _live(self, first_by: float) -> None:
        """Connects again and again, until the consumer has ended."""
        try:
            while self._consumer.closed is None:
                problem = await self._once()
                if problem is not None and self._consumer.closed is None:
                    await self._cut_off(problem, first_by)
        except MilepostError as error:
            self._refuse(error)
        except Exception as error:
            _logger.exception("the consumer of %s failed", self._name)
            self._refuse(MilepostError(f"a fault of the client: {error!r}"))

    async def _once(self) -> Unavailable | None:
        """One connection, to its end; why to wait before the next."""
        self._told = self._next
        try:
            await self._converse(self._choose())
        except Ended as ended:
            return self._follow(ended)
        except Unavailable as error:
            return error
        except MilepostError as error:
            if self._told is None:
                raise
            # Whoever sent it there has the same database, and knows better.
            self._nodes.fails(self._told)
            return Unavailable(f"{self._told}, where another node sent it, is not the one meant: {error}")
        return None

    def _refuse(self, error: MilepostError) -> None:
        """It cannot be: whoever waits for its beginning is told, and later its user."""
        if not self._welcomed.done():
            self._welcomed.set_exception(error)
            return
        words: dict[type[MilepostError], str] = {UnknownSubscription: DELETED, NotAllowed: ACCESS}
        self._close(words.get(type(error), LOST), str(error))

    def _choose(self) -> Node:
        """Where it was told to go; else where it may have been kept; else whoever answers."""
        chosen, self._next = self._next, None
        if chosen is not None:
            return chosen
        in_turn = self._nodes.in_turn()
        if self._last is not None and self._resume is not None and self._last not in self._nodes.avoided():
            return self._last
        return in_turn[0]

    def _follow(self, ended: Ended) -> Unavailable | None:
        """Ends with the consumer, or goes where the server says; why to wait before that."""
        self._resume = None
        if ended.reason in FINAL:
            self._close(ended.reason, ended.detail)
            return None
        self._consumer.lose_all(f"was given to others: the server ended the connection ({ended.reason})")
        if ended.reason == GOING_AWAY and self._at is not None:
            self._nodes.fails(self._at)
        to = self._nodes.may_follow(ended.to) if ended.to is not None else None
        if to is None and ended.to is not None:
            self._stand_by_instead_of_going_to(ended.to)
        self._next = None if to in self._nodes.avoided() else to
        self._moves += 1
        if self._next is not None and self._moves <= MOVES:
            return None
        if self._next is not None:
            # Sent back and forth: it stands by where it is rather than go there once more.
            self._nodes.fails(self._next)
            self._next = None
        return Unavailable(f"the server ended the connection: {ended.reason}")

    def _stand_by_instead_of_going_to(self, url: str) -> None:
        """Name the address as one to avoid: then the server lets this consumer stand by."""
        with suppress(ValueError):
            node = Node.of(url)
            self._nodes.fails(node)
            self._complaints.make(
                f"was sent to {node}, where it does not go: stands by. Name that node in the url of connect(), or "
                f"its host with trust=[…], if the token may be sent there"
            )

    def _close(self, reason: str, detail: str) -> None:
        error = ConsumerClosed(reason, f": {detail}" if detail else "")
        if not self._welcomed.done():
            self._welcomed.set_exception(error)
        self._consumer.close(reason, detail)
        self._refuse_requests(error)

    async def _cut_off(self, error: Unavailable, first_by: float) -> None:
        """Waits a while before the next try."""
        wait = self._backoff.wait()
        if not self._welcomed.done():
            if asyncio.get_running_loop().time() + wait > first_by:
                raise error
        elif self._kept_until and monotonic() + wait > self._kept_until:
            self._kept_until = 0.0
            self._consumer.lose_all("was with a server that could not be reached: it may be with others by now")
            if self._consumer.draining:
                self._consumer.close(DRAINED)
        self._complaints.make(f"is cut off, and comes back: {error}")
        await asyncio.sleep(wait)

    # One conversation

    async def _converse(self, node: Node) -> None:
        self._at, greeted = node, False
        try:
            async with opened(
                node, self._path, headers=self._headers, tls=self._tls, largest=self._largest
            ) as socket:
                await self._greet(socket)
                greeted = True
                await self._talk(socket)
        except Unavailable:
            # One that was only cut off may have kept the consumer: it is asked first.
            if not greeted:
                self._nodes.fails(node)
            raise

    async def _greet(self, socket: Socket) -> None:
        await socket.send(self._hello())
        try:
            async with asyncio.timeout(HELLO):
                frame = await socket.receive()
        except TimeoutError:
            raise Unanswered(f"{socket.node} does not answer a hello", sent=True) from None
        match frame:
            case frames.Welcome():
                self._welcome(frame, socket)
            case frames.End():
                raise Ended(frame)
            case frames.Trouble():
                raise error_of(bytes(frame.problem), 0, socket.node)
            case _:
                raise Unanswered(f"{socket.node} does not answer a hello with a welcome", sent=True)

    def _hello(self) -> dict[str, Any]:
        consumer = self._consumer
        hello: dict[str, Any] = {
            "type": "hello",
            "consumer": consumer.name,
            "routes": routes_sent(consumer.routes),
            "avoid": [str(node) for node in self._nodes.avoided()][:100],
        }
        self._told_open = frozenset(consumer.open)
        if self._resume is not None:
            hello |= {"resume": self._resume, "open": sorted(self._told_open)}
        return hello

    def _welcome(self, frame: frames.Welcome, socket: Socket) -> None:
        consumer, node = self._consumer, socket.node
        self._nodes.works(node)
        self._last, self._resume = node, frame.resume
        self._moves = 0
        self._backoff.reset()
        self._kept_for = min(MOST_RESUME, max(0.0, frame.resume_seconds))
        if self._told is not None and frame.standby and frame.node != str(self._told):
            self._complaints.make(
                f"was sent to {self._told}, where {frame.node} answers: is it --advertise'd right?"
            )
        consumer.timeout, consumer.standby = max(0.01, frame.timeout), frame.standby
        self._outgoing = []
        if frame.resumed:
            consumer.resumed(frame.open)
            ref = self._new_ref()
            self._pinging = ref, self._told_open - set(frame.open)
            self._outgoing.append({"type": "ping", "ref": ref})
        elif self._welcomed.done():
            consumer.lose_all("went to others: the connection was lost for too long, or its server ended")
            if consumer.draining:
                consumer.close(DRAINED)
        # The hello had what they ask for.
        self._answer_requests("configure")
        if consumer.draining:
            asked = [ref for ref in self._requests if ref.startswith("drain")]
            self._outgoing += [{"type": "drain", "ref": ref} for ref in asked or [self._new_ref()]]
        self._socket = socket
        if not self._welcomed.done():
            self._welcomed.set_result(None)
        self.speak()

    async def _talk(self, socket: Socket) -> None:
        """Reads and speaks until one of both ends."""
        tasks = [asyncio.create_task(work) for work in (self._read(socket), self._speak(socket), self._keep())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._socket = None
            self._consumer.settlements.cut()
            self._kept_until = monotonic() + self._kept_for
        # An end that was read says more than that nothing could be sent.
        errors = [error for task in tasks if not task.cancelled() and (error := task.exception()) is not None]
        raise next((error for error in errors if isinstance(error, Ended)), errors[0])

    # In

    async def _read(self, socket: Socket) -> None:
        while True:
            self._hear(await socket.receive(), socket.node)

    def _hear(self, frame: Received, node: Node) -> None:
        consumer = self._consumer
        match frame:
            case frames.Deliveries():
                if len(consumer.open) + len(frame.deliveries) > consumer.most_open + SLACK:
                    raise Unanswered(f"{node} sends more deliveries than it was asked for", sent=True)
                consumer.take(frame.deliveries)
            case frames.Settled():
                consumer.answer(frame)
            case frames.Lost():
                consumer.lost(frame.deliveries)
            case frames.Recall():
                consumer.recalled()
            case frames.Standby():
                consumer.standby = frame.standby
            case frames.Done():
                self._answer(frame.ref)
            case frames.Pong():
                self._heard_all(frame.ref)
            case frames.Trouble():
                self._hear_trouble(frame, node)
            case frames.End():
                raise Ended(frame)
            case frames.Welcome():
                raise Unanswered(f"{node} says welcome twice", sent=True)

    def _hear_trouble(self, frame: frames.Trouble, node: Node) -> None:
        error = error_of(bytes(frame.problem), 0, node)
        if not self._consumer.trouble(frame.ref, error):
            self._answer(frame.ref, error)

    def _heard_all(self, ref: object) -> None:
        """What the server took away while nobody listened it has told before this answer."""
        if self._pinging is not None and self._pinging[0] == ref:
            self._consumer.sure(self._pinging[1])
            self._pinging = None

    # Out

    def speak(self) -> None:
        """There is something to be said."""
        self._spoken.set()

    async def _speak(self, socket: Socket) -> None:
        while True:
            await self._spoken.wait()
            self._spoken.clear()
            # What is said in the same step of the loop goes together.
            await asyncio.sleep(0)
            outgoing, self._outgoing = self._outgoing, []
            for frame in (*outgoing, *self._consumer.settlements.frames()):
                await socket.send(frame)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(max(0.05, self._consumer.timeout / 4))
            self._consumer.keep()

    async def configure(self) -> None:
        """Tells the server of other routes; returns when it has them."""
        await self._ask({"type": "configure", "routes": routes_sent(self._consumer.routes)})

    async def drain(self) -> None:
        """Tells the server that nothing more is wanted."""
        await self._ask({"type": "drain"})

    async def _ask(self, frame: dict[str, Any]) -> None:
        ref = f"{frame['type']} {self._new_ref()}"
        answer = self._requests[ref] = asyncio.get_running_loop().create_future()
        self._outgoing.append({**frame, "ref": ref})
        self.speak()
        try:
            await answer
        finally:
            del self._requests[ref]

    def _new_ref(self) -> str:
        self._number += 1
        return str(self._number)

    def _answer(self, ref: object, error: Exception | None = None) -> None:
        answer = self._requests.get(ref) if isinstance(ref, str) else None
        if answer is None or answer.done():
            return
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)

    def _answer_requests(self, kind: str) -> None:
        for ref in list(self._requests):
            if ref.startswith(kind):
                self._answer(ref)

    def _refuse_requests(self, error: Exception) -> None:
        for ref in list(self._requests):
            self._answer(ref, error)
