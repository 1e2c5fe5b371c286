"""The connection of a consumer: a WebSocket that breaks and comes back, at another server if need be."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from milepost.client.frames import (
    AnyReceivedFrame,
    BadFrame,
    DeliveriesFrame,
    decode_received_frame,
    routes_to_wire,
)
from milepost.client.nodes import Backoff, NodeAddress, NodeList, api_path
from milepost.client.problems import error_of_answer
from milepost.client.transport import NodeUnanswered, certificate_problem, connection_error_text
from milepost.engine.consumers.consumer import (
    REASON_DELETED,
    REASON_DRAINED,
    REASON_LOST,
    REASON_STOPPED,
    REASON_TOO_MANY_CONSUMERS,
)
from milepost.errors import ConsumerClosed, MilepostError, NotAllowed, Unavailable, UnknownSubscription
from milepost.throttled_warnings import ThrottledWarnings
from milepost.wire.frames import (
    ACCESS_REASON,
    BAD_FRAME_REASON,
    GOING_AWAY_REASON,
    SUBPROTOCOL,
    DoneFrame,
    EndFrame,
    LostFrame,
    PongFrame,
    ProblemFrame,
    RecallFrame,
    SettledFrame,
    StandbyFrame,
    WelcomeFrame,
)

if TYPE_CHECKING:
    from milepost.client.consumer import ClientConsumer


OPEN_TIMEOUT_SECONDS: Final = 5.0
"""Seconds in which a node has to take a connection."""
CLIENT_PING_SECONDS: Final = 10.0
"""Seconds after which a node is asked whether it is still there, and again within which it has to answer."""
CLOSE_TIMEOUT_SECONDS: Final = 2.0
"""Seconds for a good-bye."""

# It would write the token down.
_silent_logger = logging.Logger("milepost.client.websocket", logging.INFO)
_silent_logger.addHandler(logging.NullHandler())


class ClientSocket:
    """Sends and receives frames; `NodeUnanswered` where the connection is over."""

    def __init__(self, connection: ClientConnection, node: NodeAddress) -> None:
        self._connection = connection
        self.node = node

    async def send(self, frame: Mapping[str, Any]) -> None:
        """Sends a frame; returns when there is room for the next."""
        try:
            await self._connection.send(msgspec.json.encode(frame).decode())
        except (WebSocketException, OSError) as error:
            raise _connection_cut(self.node, error) from error

    async def wait_closed(self) -> None:
        """Waits until the server has closed the connection."""
        await self._connection.wait_closed()

    async def receive(self) -> AnyReceivedFrame:
        """The next frame."""
        while True:
            try:
                text = await self._connection.recv(decode=False)
            except (WebSocketException, OSError) as error:
                raise _connection_cut(self.node, error) from error
            try:
                frame = decode_received_frame(text)
            except BadFrame as error:
                raise NodeUnanswered(f"{self.node}: {error}", sent=True) from error
            if frame is not None:
                return frame


class _ConnectWithoutRedirect(connect):
    """Goes where it was told and nowhere else: a redirect could be to anybody."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


@asynccontextmanager
async def open_socket(
    node: NodeAddress, path: str, *, headers: Mapping[str, str], tls: ssl.SSLContext, largest: int
) -> AsyncIterator[ClientSocket]:
    """A WebSocket within this block. Who is refused gets the error that the node tells."""
    connecting = _ConnectWithoutRedirect(
        node.websocket(path),
        subprotocols=[Subprotocol(SUBPROTOCOL)],
        additional_headers=dict(headers),
        ssl=tls if node.is_secure else None,
        compression=None,
        open_timeout=OPEN_TIMEOUT_SECONDS,
        close_timeout=CLOSE_TIMEOUT_SECONDS,
        ping_interval=CLIENT_PING_SECONDS,
        ping_timeout=CLIENT_PING_SECONDS,
        max_size=largest,
        max_queue=4,
        logger=_silent_logger,
    )
    try:
        connection = await connecting
    except InvalidStatus as error:
        raise error_of_answer(bytes(error.response.body or b""), error.response.status_code, node) from error
    except (WebSocketException, OSError, TimeoutError, EOFError, asyncio.IncompleteReadError) as error:
        raise _connect_error(node, error) from error
    try:
        yield ClientSocket(connection, node)
    finally:
        await asyncio.shield(connection.close())


def _connect_error(node: NodeAddress, error: BaseException) -> MilepostError:
    if (problem := certificate_problem(error)) is not None:
        return MilepostError(
            f"{node}: its certificate is not trusted ({problem}): give the file of its authority, ca=…"
        )
    return NodeUnanswered(f"{node} cannot be reached: {connection_error_text(error)}", sent=False)


def _connection_cut(node: NodeAddress, error: BaseException) -> NodeUnanswered:
    return NodeUnanswered(f"the connection to {node} was cut: {str(error) or type(error).__name__}", sent=True)


WELCOME_TIMEOUT_SECONDS: Final = 15.0
"""Seconds within which a server answers a hello."""
LEAVE_TIMEOUT_SECONDS: Final = 3.0
"""Seconds within which a server lets a consumer go."""
MAX_MOVES: Final = 5
"""How often in a row a client lets itself be sent on before it stays where it is."""
MAX_RESUME_SECONDS: Final = 60.0
"""Seconds for which a server may promise to keep a consumer."""
MAX_EXCESS_DELIVERIES: Final = 1000
"""Deliveries beyond what was asked for that a server may send: what was asked for may just have changed."""

FINAL_REASONS: Final = frozenset(
    {REASON_DRAINED, REASON_DELETED, REASON_TOO_MANY_CONSUMERS, ACCESS_REASON, BAD_FRAME_REASON, REASON_STOPPED}
)
"""Reasons after which a consumer does not come back."""

_logger = logging.getLogger("milepost.client")


class EndedByServer(Exception):
    """The server has ended the conversation."""

    def __init__(self, frame: EndFrame) -> None:
        self.reason = frame.reason[:100]
        self.detail = frame.detail[:1000]
        self.to = frame.to
        super().__init__(self.reason)


class ConsumerConnection:
    """Keeps a consumer connected, from its beginning to its end."""

    def __init__(
        self,
        consumer: "ClientConsumer",
        address: tuple[str, str],
        nodes: NodeList,
        *,
        headers: Mapping[str, str],
        tls: ssl.SSLContext,
        patience: float,
        largest: int,
    ) -> None:
        self._consumer = consumer
        self._name = "/".join(address)
        self._path = api_path("subscriptions", *address, "consume")
        self._nodes = nodes
        self._headers = headers
        self._tls = tls
        self._patience = patience
        self._largest = largest
        self._complaints = ThrottledWarnings(_logger, f"the consumer of {self._name}")
        self._backoff = Backoff()
        self._task: asyncio.Task[None] | None = None
        self._welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._socket: ClientSocket | None = None
        self._frames_ready = asyncio.Event()
        self._requests: dict[str, asyncio.Future[None]] = {}
        self._outgoing: list[dict[str, Any]] = []
        self._number = 0
        self._next: NodeAddress | None = None
        """Where it was told to go."""
        self._told: NodeAddress | None = None
        """Where it goes because it was told to."""
        self._last: NodeAddress | None = None
        """Where it was, and may have been kept."""
        self._resume: str | None = None
        self._kept_until = 0.0
        self._moves = 0
        self._at: NodeAddress | None = None
        """Where it is, or was last."""
        self._kept_for = 0.0
        self._reported_open: frozenset[int] = frozenset()
        self._resume_ping: tuple[str, frozenset[int]] | None = None
        """What is asked for after coming back, and what was not open any more."""

    # Coming and going

    async def begin(self) -> None:
        """Connects; raises what keeps it from that."""
        self._task = asyncio.create_task(
            self._reconnect_until_closed(asyncio.get_running_loop().time() + self._patience)
        )
        await asyncio.shield(self._welcomed)

    async def end(self) -> None:
        """Leaves: when this returns, others can have what was open, if a server was there to be told."""
        task, self._task = self._task, None
        if self._socket is not None:
            with suppress(MilepostError, TimeoutError):
                async with asyncio.timeout(LEAVE_TIMEOUT_SECONDS):
                    await self._socket.send({"type": "leave"})
                    await self._socket.wait_closed()
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if self._welcomed.done() and not self._welcomed.cancelled():
            self._welcomed.exception()
        self._refuse_requests(ConsumerClosed(self._consumer.closed or REASON_LOST))

    async def _reconnect_until_closed(self, first_by: float) -> None:
        """Connects again and again, until the consumer has ended."""
        try:
            while self._consumer.closed is None:
                problem = await self._connect_once()
                if problem is not None and self._consumer.closed is None:
                    await self._wait_before_reconnect(problem, first_by)
        except MilepostError as error:
            self._refuse(error)
        except Exception as error:
            _logger.exception("the consumer of %s failed", self._name)
            self._refuse(MilepostError(f"a fault of the client: {error!r}"))

    async def _connect_once(self) -> Unavailable | None:
        """One connection, to its end; why to wait before the next."""
        self._told = self._next
        try:
            await self._converse(self._choose())
        except EndedByServer as ended:
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
        words: dict[type[MilepostError], str] = {UnknownSubscription: REASON_DELETED, NotAllowed: ACCESS_REASON}
        self._close(words.get(type(error), REASON_LOST), str(error))

    def _choose(self) -> NodeAddress:
        """Where it was told to go; else where it may have been kept; else whoever answers."""
        chosen, self._next = self._next, None
        if chosen is not None:
            return chosen
        in_turn = self._nodes.in_turn()
        if self._last is not None and self._resume is not None and self._last not in self._nodes.avoided():
            return self._last
        return in_turn[0]

    def _follow(self, ended: EndedByServer) -> Unavailable | None:
        """Ends with the consumer, or goes where the server says; why to wait before that."""
        self._resume = None
        if ended.reason in FINAL_REASONS:
            self._close(ended.reason, ended.detail)
            return None
        self._consumer.lose_all(f"was given to others: the server ended the connection ({ended.reason})")
        if ended.reason == GOING_AWAY_REASON and self._at is not None:
            self._nodes.fails(self._at)
        to = self._nodes.may_follow(ended.to) if ended.to is not None else None
        if to is None and ended.to is not None:
            self._stand_by_instead_of_going_to(ended.to)
        self._next = None if to in self._nodes.avoided() else to
        self._moves += 1
        if self._next is not None and self._moves <= MAX_MOVES:
            return None
        if self._next is not None:
            # Sent back and forth: it stands by where it is rather than go there once more.
            self._nodes.fails(self._next)
            self._next = None
        return Unavailable(f"the server ended the connection: {ended.reason}")

    def _stand_by_instead_of_going_to(self, url: str) -> None:
        """Name the address as one to avoid: then the server lets this consumer stand by."""
        with suppress(ValueError):
            node = NodeAddress.of(url)
            self._nodes.fails(node)
            self._complaints.warn(
                f"was sent to {node}, where it does not go: stands by. Name that node in the url of connect(), or "
                f"its host with trust=[…], if the token may be sent there"
            )

    def _close(self, reason: str, detail: str) -> None:
        error = ConsumerClosed(reason, f": {detail}" if detail else "")
        if not self._welcomed.done():
            self._welcomed.set_exception(error)
        self._consumer.close(reason, detail)
        self._refuse_requests(error)

    async def _wait_before_reconnect(self, error: Unavailable, first_by: float) -> None:
        """Waits a while before the next try."""
        wait = self._backoff.wait()
        if not self._welcomed.done():
            if asyncio.get_running_loop().time() + wait > first_by:
                raise error
        elif self._kept_until and monotonic() + wait > self._kept_until:
            self._kept_until = 0.0
            self._consumer.lose_all("was with a server that could not be reached: it may be with others by now")
            if self._consumer.draining:
                self._consumer.close(REASON_DRAINED)
        self._complaints.warn(f"is cut off, and comes back: {error}")
        await asyncio.sleep(wait)

    # One conversation

    async def _converse(self, node: NodeAddress) -> None:
        self._at, greeted = node, False
        try:
            async with open_socket(
                node, self._path, headers=self._headers, tls=self._tls, largest=self._largest
            ) as socket:
                await self._greet(socket)
                greeted = True
                await self._run_greeted(socket)
        except Unavailable:
            # One that was only cut off may have kept the consumer: it is asked first.
            if not greeted:
                self._nodes.fails(node)
            raise

    async def _greet(self, socket: ClientSocket) -> None:
        await socket.send(self._hello())
        try:
            async with asyncio.timeout(WELCOME_TIMEOUT_SECONDS):
                frame = await socket.receive()
        except TimeoutError:
            raise NodeUnanswered(f"{socket.node} does not answer a hello", sent=True) from None
        match frame:
            case WelcomeFrame():
                self._welcome(frame, socket)
            case EndFrame():
                raise EndedByServer(frame)
            case ProblemFrame():
                raise error_of_answer(bytes(frame.problem), 0, socket.node)
            case _:
                raise NodeUnanswered(f"{socket.node} does not answer a hello with a welcome", sent=True)

    def _hello(self) -> dict[str, Any]:
        consumer = self._consumer
        hello: dict[str, Any] = {
            "type": "hello",
            "consumer": consumer.name,
            "routes": routes_to_wire(consumer.routes),
            "avoid": [str(node) for node in self._nodes.avoided()][:100],
        }
        self._reported_open = frozenset(consumer.open)
        if self._resume is not None:
            hello |= {"resume": self._resume, "open": sorted(self._reported_open)}
        return hello

    def _welcome(self, frame: WelcomeFrame, socket: ClientSocket) -> None:
        consumer, node = self._consumer, socket.node
        self._nodes.works(node)
        self._last, self._resume = node, frame.resume
        self._moves = 0
        self._backoff.reset()
        self._kept_for = min(MAX_RESUME_SECONDS, max(0.0, frame.resume_seconds))
        if self._told is not None and frame.standby and frame.node != str(self._told):
            self._complaints.warn(
                f"was sent to {self._told}, where {frame.node} answers: is it --advertise'd right?"
            )
        consumer.timeout, consumer.standby = max(0.01, frame.timeout), frame.standby
        self._outgoing = []
        if frame.resumed:
            consumer.resumed(frame.open)
            ref = self._new_ref()
            self._resume_ping = ref, self._reported_open - set(frame.open)
            self._outgoing.append({"type": "ping", "ref": ref})
        elif self._welcomed.done():
            consumer.lose_all("went to others: the connection was lost for too long, or its server ended")
            if consumer.draining:
                consumer.close(REASON_DRAINED)
        # The hello had what they ask for.
        self._answer_requests("configure")
        if consumer.draining:
            asked = [ref for ref in self._requests if ref.startswith("drain")]
            self._outgoing += [{"type": "drain", "ref": ref} for ref in asked or [self._new_ref()]]
        self._socket = socket
        if not self._welcomed.done():
            self._welcomed.set_result(None)
        self.wake_sender()

    async def _run_greeted(self, socket: ClientSocket) -> None:
        """Reads and speaks until one of both ends."""
        tasks = [
            asyncio.create_task(work)
            for work in (self._read(socket), self._send_frames(socket), self._extend_waiting())
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._socket = None
            self._consumer.settlements.connection_lost()
            self._kept_until = monotonic() + self._kept_for
        # An end that was read says more than that nothing could be sent.
        errors = [error for task in tasks if not task.cancelled() and (error := task.exception()) is not None]
        raise next((error for error in errors if isinstance(error, EndedByServer)), errors[0])

    # In

    async def _read(self, socket: ClientSocket) -> None:
        while True:
            self._receive(await socket.receive(), socket.node)

    def _receive(self, frame: AnyReceivedFrame, node: NodeAddress) -> None:
        consumer = self._consumer
        match frame:
            case DeliveriesFrame():
                if len(consumer.open) + len(frame.deliveries) > consumer.most_open + MAX_EXCESS_DELIVERIES:
                    raise NodeUnanswered(f"{node} sends more deliveries than it was asked for", sent=True)
                consumer.take(frame.deliveries)
            case SettledFrame():
                consumer.answer(frame)
            case LostFrame():
                consumer.lost(frame.deliveries)
            case RecallFrame():
                consumer.recalled()
            case StandbyFrame():
                consumer.standby = frame.standby
            case DoneFrame():
                self._answer(frame.ref)
            case PongFrame():
                self._receive_pong(frame.ref)
            case ProblemFrame():
                self._receive_problem(frame, node)
            case EndFrame():
                raise EndedByServer(frame)
            case WelcomeFrame():
                raise NodeUnanswered(f"{node} says welcome twice", sent=True)

    def _receive_problem(self, frame: ProblemFrame, node: NodeAddress) -> None:
        error = error_of_answer(bytes(frame.problem), 0, node)
        if not self._consumer.frame_failed(frame.ref, error):
            self._answer(frame.ref, error)

    def _receive_pong(self, ref: object) -> None:
        """What the server took away while nobody listened it has told before this answer."""
        if self._resume_ping is not None and self._resume_ping[0] == ref:
            self._consumer.confirm_gone(self._resume_ping[1])
            self._resume_ping = None

    # Out

    def wake_sender(self) -> None:
        """There is something to be said."""
        self._frames_ready.set()

    async def _send_frames(self, socket: ClientSocket) -> None:
        while True:
            await self._frames_ready.wait()
            self._frames_ready.clear()
            # What is said in the same step of the loop goes together.
            await asyncio.sleep(0)
            outgoing, self._outgoing = self._outgoing, []
            for frame in (*outgoing, *self._consumer.settlements.frames()):
                await socket.send(frame)

    async def _extend_waiting(self) -> None:
        while True:
            await asyncio.sleep(max(0.05, self._consumer.timeout / 4))
            self._consumer.extend_waiting()

    async def configure(self) -> None:
        """Tells the server of other routes; returns when it has them."""
        await self._ask({"type": "configure", "routes": routes_to_wire(self._consumer.routes)})

    async def drain(self) -> None:
        """Tells the server that nothing more is wanted."""
        await self._ask({"type": "drain"})

    async def _ask(self, frame: dict[str, Any]) -> None:
        ref = f"{frame['type']} {self._new_ref()}"
        answer = self._requests[ref] = asyncio.get_running_loop().create_future()
        self._outgoing.append({**frame, "ref": ref})
        self.wake_sender()
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
