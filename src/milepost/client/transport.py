"""Send requests over HTTP to one server after the other, until one has answered."""

import asyncio
import logging
import os
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import httpx
import msgspec

from milepost.client.nodes import Backoff, NodeAddress, NodeList
from milepost.client.problems import error_of_answer
from milepost.errors import MilepostError, TooLarge, Unavailable
from milepost.throttled_warnings import ThrottledWarnings

T = TypeVar("T")

CONNECT_TIMEOUT_SECONDS: Final = 5.0
"""Seconds in which a node has to take a connection."""
ANSWER_TIMEOUT_SECONDS: Final = 45.0
"""Seconds of silence after which an answer is no longer waited for; a read may look for 30."""
JSON_HEADERS: Final = {"content-type": "application/json"}

_NOT_SENT_ERRORS = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_logger = logging.getLogger("milepost.client")

QueryParameters = Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class ApiRequest:
    """What is asked of a node."""

    method: str
    path: str
    query: QueryParameters = ()
    body: bytes | None = None
    repeatable: bool = True
    """Whether to send it again is harmless where nobody knows whether it was done."""
    seconds: float = 0.0
    """How long the answer may take beyond the usual: the server waits for something."""


@dataclass(frozen=True)
class ApiAnswer:
    """What a node answered."""

    body: bytes
    unsure: bool
    """Whether it was sent before, and nobody knows what came of that."""

    def decode_as(self, wanted: type[T]) -> T:
        """What it says."""
        return decode_answer(self.body, wanted)


class NodeUnanswered(Unavailable):
    """A node could not be reached, or did not answer; `sent`: it may have done what was asked."""

    def __init__(self, problem: str, *, sent: bool) -> None:
        self.sent = sent
        super().__init__(problem)


class HttpTransport:
    """Asks nodes. Open it before, and close it after."""

    def __init__(
        self, nodes: NodeList, *, headers: Mapping[str, str], tls: ssl.SSLContext, patience: float, largest: int
    ) -> None:
        self.nodes = nodes
        self._patience = patience
        self._largest = largest
        self._complaints = ThrottledWarnings(_logger, str(nodes))
        # What is compressed could be larger than anybody can bear. Nobody but a node says where to go next.
        self._http = httpx.AsyncClient(
            headers={**headers, "accept-encoding": "identity"},
            verify=tls,
            follow_redirects=False,
            timeout=httpx.Timeout(ANSWER_TIMEOUT_SECONDS, connect=CONNECT_TIMEOUT_SECONDS),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
        )

    async def close(self) -> None:
        """Ends all connections."""
        await self._http.aclose()

    async def ask(self, request: ApiRequest) -> ApiAnswer:
        """The answer of the first node that gives one; the error that it tells; `Unavailable` if none does."""
        loop = asyncio.get_running_loop()
        end, backoff, unsure = loop.time() + self._patience, Backoff(), False
        while True:
            problems: list[str] = []
            for node in self.nodes.in_turn():
                try:
                    body = await self._ask_one(node, request)
                except Unavailable as error:
                    self.nodes.fails(node)
                    unsure = unsure or not isinstance(error, NodeUnanswered) or error.sent
                    problems.append(str(error))
                    if unsure and not request.repeatable:
                        raise Unavailable(f"{error}. It may have been done: look before you repeat it") from error
                else:
                    self.nodes.works(node)
                    return ApiAnswer(body, unsure)
            wait = backoff.wait()
            if loop.time() + wait > end:
                raise Unavailable("; ".join(problems))
            self._complaints.warn(f"cannot serve, and is asked again: {'; '.join(problems)}")
            await asyncio.sleep(wait)

    async def _ask_one(self, node: NodeAddress, request: ApiRequest) -> bytes:
        async with self.opened(node, request) as answer:
            body = await self.read(answer, node)
        if answer.status_code not in (200, 204):
            raise error_of_answer(body, answer.status_code, node)
        return body

    @asynccontextmanager
    async def opened(
        self, node: NodeAddress, request: ApiRequest, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """An answer of which only the head has been read."""
        sent = {**(JSON_HEADERS if request.body is not None else {}), **(headers or {})}
        try:
            async with self._http.stream(
                request.method,
                node.http(request.path),
                params=list(request.query) or None,
                content=request.body,
                headers=sent,
                timeout=httpx.Timeout(ANSWER_TIMEOUT_SECONDS + request.seconds, connect=CONNECT_TIMEOUT_SECONDS),
            ) as answer:
                yield answer
        except httpx.HTTPError as error:
            raise _transport_error(node, error) from error

    async def read(self, answer: httpx.Response, node: NodeAddress) -> bytes:
        """All of an answer; `TooLarge` if that is more than anybody should send."""
        body = bytearray()
        async for piece in answer.aiter_raw():
            body += piece
            if len(body) > self._largest:
                raise TooLarge(
                    "answer",
                    f"{node} sent more than {self._largest:,} bytes: ask for less, or raise max_answer_bytes",
                )
        return bytes(body)


def decode_answer(body: bytes, wanted: type[T]) -> T:
    """An answer as what it has to be."""
    try:
        return msgspec.json.decode(body, type=wanted)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MilepostError(f"the server answered what this client does not understand: {error}") from error


def encode_body(body: Any) -> bytes:
    """What is sent."""
    return msgspec.json.encode(body)


def _transport_error(node: NodeAddress, error: httpx.HTTPError) -> MilepostError:
    if (problem := certificate_problem(error)) is not None:
        return MilepostError(
            f"{node}: its certificate is not trusted ({problem}): give the file of its authority, ca=…"
        )
    if isinstance(error, _NOT_SENT_ERRORS):
        return NodeUnanswered(f"{node} cannot be reached: {connection_error_text(error)}", sent=False)
    return NodeUnanswered(f"{node} did not answer: {connection_error_text(error)}", sent=True)


def connection_error_text(error: BaseException) -> str:
    """Why a connection failed: what the system says of it, if it does."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            # asyncio puts words of its own there; those that look up names have negative numbers.
            number = cause.errno or 0
            return os.strerror(number) if number > 0 else cause.strerror
        group = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else None
        cause = group or cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__


def certificate_problem(error: BaseException | None) -> str | None:
    """What is wrong with the certificate, if that is why a connection failed."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error.verify_message
        error = error.__cause__ or error.__context__
    return None
