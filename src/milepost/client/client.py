"""`Client`: the methods of a `Milepost` that make sense from elsewhere."""

import asyncio
import logging
import ssl
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import UUID, uuid4

import httpx

from milepost.client.connection import ConsumerConnection
from milepost.client.consumer import ClientConsumer
from milepost.client.messages import HttpAppender, HttpFollower, HttpReader, OneOrSeveralNames, ReadCriteria
from milepost.client.nodes import NodeList, api_path
from milepost.client.pull import HttpPuller
from milepost.client.subscriptions import ClientSubscription, options_to_json
from milepost.client.transport import ApiRequest, HttpTransport, encode_body
from milepost.dispatch import Route
from milepost.engine.checks import checked
from milepost.engine.consumers.consumer import REASON_MILEPOST_CLOSED
from milepost.engine.consumers.routes import routes_of
from milepost.engine.declare.consumer_options import ConsumerSubscriptionOptions, IfExists, check_if_exists
from milepost.engine.declare.declaration import address_of, checked_name
from milepost.engine.operate.info import SubscriptionInfo
from milepost.engine.operate.trace.results import Trace
from milepost.engine.operate.trace.tracer import DEFAULT_TRACED_MESSAGES, check_trace_request
from milepost.engine.pull.claims import PulledDeliveries
from milepost.engine.pull.settle import DeliveriesOrTokens, PullSettleResult, SettleReason
from milepost.errors import MilepostError
from milepost.log.append import as_batches, as_message_list
from milepost.log.codec import Codec, MessageDeclarations
from milepost.log.message import ANY, Appended, Message
from milepost.log.query import Now, Page, check_follow_start
from milepost.progress.reports import Node
from milepost.wire.subscriptions import Nodes, Subscriptions

if TYPE_CHECKING:
    from milepost.client.sync import SyncClient

NOT_OPEN_ADVICE: Final = "not open: use it inside `async with client:`, or through client.sync"
OTHER_LOOP_ADVICE: Final = "this client is open in another event loop: use a second one, or client.sync"

_logger = logging.getLogger("milepost.client")


class Client(MessageDeclarations):
    """A Milepost that is elsewhere. `milepost.connect` makes one and says what its options are."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        token: str | None,
        group: str,
        messages: MessageDeclarations | None,
        ca: str | None,
        patience: float,
        max_answer_bytes: int,
        trust: Sequence[str] = (),
    ) -> None:
        self.group = checked("group", checked_name, group)
        """What the name of a subscription alone means."""
        self._nodes = NodeList(urls, trust)
        # How large a message may be is for the server to say.
        self._codec = Codec(sys.maxsize)
        if messages is not None:
            self.adopt_messages(messages)
        self._headers = _token_headers(token)
        self._tls = ssl.create_default_context(cafile=ca) if ca is not None else httpx.create_ssl_context()
        self._patience = patience
        self._largest = max_answer_bytes
        self._open: HttpTransport | None = None
        self._consumers: set[ClientConsumer] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._entered = 0
        if token is not None:
            _warn_of_clear_text(self._nodes)

    @cached_property
    def sync(self) -> "SyncClient":
        """The same methods for code that is not async."""
        from milepost.client.sync import SyncClient

        return SyncClient(self)

    # Coming and going

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        if self._open is not None and self._loop is not loop:
            raise MilepostError(OTHER_LOOP_ADVICE)
        if self._open is None:
            self._open, self._loop = self._new_requests(), loop
        self._entered += 1
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._entered -= 1
        if self._entered == 0 and self._open is not None:
            requests, self._open, self._loop = self._open, None, None
            await asyncio.gather(*(consumer.leave(REASON_MILEPOST_CLOSED) for consumer in list(self._consumers)))
            await requests.close()

    def forget(self) -> object:
        """In a forked process: what is open stayed in the parent; gives what must not be ended here."""
        left = self._open, self._consumers
        self._open, self._consumers, self._loop = None, set(), None
        self._entered = 0
        return left

    def _new_requests(self) -> HttpTransport:
        return HttpTransport(
            self._nodes,
            headers=self._headers,
            tls=self._tls,
            patience=self._patience,
            largest=self._largest,
        )

    def _requests(self) -> HttpTransport:
        if self._open is None:
            raise MilepostError(NOT_OPEN_ADVICE)
        if asyncio.get_running_loop() is not self._loop:
            raise MilepostError(OTHER_LOOP_ADVICE)
        return self._open

    # Appending and reading

    async def append(self, stream: str, messages: Any, *, expected: int = ANY) -> Appended:
        """Appends one message, or several atomically, to a stream named `category-id`.

        It is sent again, to other nodes too, while nobody answers: each message has its id before, so that it is
        written once.

        Args:
            stream: The stream; a new one begins with its first message.
            messages: An instance of a registered class or a `NewMessage`, or a list of them.
            expected: The version that the stream must have, `NO_STREAM`, `STREAM_EXISTS` or `ANY` (the default).
                Another version raises `WrongVersion`, and nothing is written.
        """
        return await HttpAppender(self._requests(), self._codec).append(
            stream, as_message_list(messages), expected
        )

    async def append_many(
        self, messages: Mapping[str, Any], *, expected: Mapping[str, int] | None = None
    ) -> dict[str, Appended]:
        """Append to several streams: all or nothing. The result has them in the order given.

        `expected` has a version for each stream that needs one.
        """
        batches = as_batches(messages)
        return await HttpAppender(self._requests(), self._codec).append_many(batches, expected or {})

    async def read(
        self,
        stream: OneOrSeveralNames | None = None,
        *,
        category: OneOrSeveralNames | None = None,
        types: OneOrSeveralNames | None = None,
        where: str | None = None,
        after: int = 0,
        after_version: int = 0,
        before: int | None = None,
        before_version: int | None = None,
        since: datetime | None = None,
        backwards: bool = False,
        limit: int | None = None,
    ) -> AsyncGenerator[Message[Any], None]:
        """Messages that are there now, in order, in pages; it never waits.

        One stream is read by version to its last committed message. Anything else is read by position to the
        horizon, behind which no message can appear any more.

        Args:
            stream: One stream, or any of several.
            category: One category, or any of several.
            types: One type, or any of several; `*` is one dotted part and `>` is the rest.
            where: A filter over the messages' properties, such as `amount >= 100 && region == "EU"`.
            after: Only messages with a higher position.
            after_version: Only messages with a higher version; for one stream.
            before: Only messages with a lower position; not for one stream.
            before_version: Only messages with a lower version; for one stream.
            since: Only messages of this time or later.
            backwards: The newest first.
            limit: At most so many.
        """
        pages = self.read_pages(
            stream,
            category=category,
            types=types,
            where=where,
            after=after,
            after_version=after_version,
            before=before,
            before_version=before_version,
            since=since,
            backwards=backwards,
            limit=limit,
        )
        async with aclosing(pages):
            async for page in pages:
                for message in page:
                    yield message

    async def read_pages(
        self,
        stream: OneOrSeveralNames | None = None,
        *,
        category: OneOrSeveralNames | None = None,
        types: OneOrSeveralNames | None = None,
        where: str | None = None,
        after: int = 0,
        after_version: int = 0,
        before: int | None = None,
        before_version: int | None = None,
        since: datetime | None = None,
        backwards: bool = False,
        limit: int | None = None,
    ) -> AsyncGenerator[Page, None]:
        """What `read` gives, in the lists it is fetched in."""
        wanted = ReadCriteria(stream=stream, category=category, types=types, where=where, since=since)
        pages = self._reading().pages(
            wanted,
            after=after,
            after_version=after_version,
            before=before,
            before_version=before_version,
            backwards=backwards,
            limit=limit,
        )
        async with aclosing(pages):
            async for page in pages:
                yield page

    async def follow(
        self,
        stream: OneOrSeveralNames | None = None,
        *,
        category: OneOrSeveralNames | None = None,
        types: OneOrSeveralNames | None = None,
        where: str | None = None,
        after: int | Now = 0,
    ) -> AsyncGenerator[Message[Any], None]:
        """Messages in order, for ever: those there now, then each new one once it is final.

        Where a node ends it goes on at another, without gap or repetition. Leaving the loop ends the following.

        Args:
            stream: One stream, or any of several.
            category: One category, or any of several.
            types: One type, or any of several; `*` is one dotted part and `>` is the rest.
            where: A filter over the messages' properties, such as `amount >= 100 && region == "EU"`.
            after: Only messages with a higher position, or `NOW` for those not there yet when the loop begins.
        """
        pages = self.follow_pages(stream, category=category, types=types, where=where, after=after)
        async with aclosing(pages):
            async for page in pages:
                for message in page:
                    yield message

    async def follow_pages(
        self,
        stream: OneOrSeveralNames | None = None,
        *,
        category: OneOrSeveralNames | None = None,
        types: OneOrSeveralNames | None = None,
        where: str | None = None,
        after: int | Now = 0,
    ) -> AsyncGenerator[Page, None]:
        """What `follow` gives, in lists."""
        check_follow_start(after)
        wanted = ReadCriteria(stream=stream, category=category, types=types, where=where)
        following = HttpFollower(
            self._requests(), self._reading(), self._codec, patience=self._patience, largest=self._largest
        )
        async with aclosing(following.pages(wanted, after)) as pages:
            async for page in pages:
                yield page

    async def head(self) -> int:
        """The horizon: the position up to which `read` goes now. It never waits."""
        return await self._reading().head()

    async def last(self, stream: str) -> int:
        """The version of a stream's last message; 0 if it has none."""
        return await self._reading().last(stream)

    def _reading(self) -> HttpReader:
        return HttpReader(self._requests(), self._codec)

    # Subscriptions

    async def subscriptions(self) -> list[SubscriptionInfo]:
        """How each subscription of every group stands: status, lag, what needs attention, lanes, their owners."""
        answer = await self._requests().ask(ApiRequest(method="GET", path=api_path("subscriptions")))
        return answer.decode_as(Subscriptions).subscriptions

    async def nodes(self) -> list[Node]:
        """The servers on this database that clients can connect to, the first that came first."""
        answer = await self._requests().ask(ApiRequest(method="GET", path=api_path("nodes")))
        return answer.decode_as(Nodes).nodes

    async def trace(
        self,
        target: str | UUID,
        *,
        group: str | None = None,
        subscription: str | None = None,
        limit: int = DEFAULT_TRACED_MESSAGES,
        before_version: int | None = None,
    ) -> Trace:
        """Where messages are: for each one of a stream, and each subscription of every group, what became of it.

        Args:
            target: A stream, or the id of a message.
            group: Only the subscriptions of this group.
            subscription: Only those of this name, or the one of this address, `group/name`.
            limit: At most so many messages, the newest ones; 1 to 1,000. Defaults to 100.
            before_version: Only older versions than this: `before_version` of the page before.
        """
        check_trace_request(target, limit, before_version, group, subscription)
        words = {"group": group, "subscription": subscription, "before_version": before_version}
        query = [(name, str(value)) for name, value in words.items() if value is not None]
        request = ApiRequest(
            method="GET", path=api_path("trace", str(target)), query=[*query, ("limit", str(limit))]
        )
        return (await self._requests().ask(request)).decode_as(Trace)

    async def create_subscription(
        self, /, name: str, *, if_exists: IfExists = "update", **options: Any
    ) -> ClientSubscription:
        """Creates a durable subscription for consumers, or for pulling with `tracking="all"`.

        Its options are those of `milepost.engine.declare.consumer_options.ConsumerSubscriptionOptions`. They are
        stored, and `manage(…).update` changes them while consumers run. Returns what `manage` gives.

        Args:
            name: `group/name`, or the name alone for one of the own group.
            if_exists: "update" (the default) changes its settings to these, "error" raises `AlreadyExists`,
                "ignore" leaves it as it is.
        """
        group, own = self._address(name)
        check_if_exists(if_exists)
        checked("group", checked_name, group)
        ConsumerSubscriptionOptions.of(own, options)
        body = {"name": own, "group": group, "if_exists": if_exists, **options_to_json(options)}
        request = ApiRequest(
            method="POST", path=api_path("subscriptions"), body=encode_body(body), repeatable=if_exists != "error"
        )
        await self._requests().ask(request)
        return self.manage(name)

    def manage(self, address: str) -> ClientSubscription:
        """A subscription to look at and to operate: `group/name`, or the name alone for one of the own group."""
        return ClientSubscription(*self._address(address), self._requests, self._codec)

    def consumer(
        self,
        subscription: str,
        *,
        where: str | None = None,
        priority: int | None = None,
        capacity: int | None = None,
        capacity_bytes: int | None = None,
        routes: Sequence[Route] | None = None,
    ) -> ClientConsumer:
        """A consumer of a subscription that was created: `async with client.consumer("shipping") as consumer`.

        Args:
            subscription: `group/name`, or the name alone for one of the own group.
            where: A filter over the messages' properties; without it everything is taken.
            priority: A message goes to the highest priority that matches. Defaults to 0.
            capacity: The most messages that are open at a time; 0 pauses. Defaults to 1,000.
            capacity_bytes: No more messages while those that are open have this size. Defaults to 32 MiB.
            routes: Several of the above, instead.
        """
        options = {"where": where, "priority": priority, "capacity": capacity, "capacity_bytes": capacity_bytes}
        address = self._address(subscription)
        return ClientConsumer(
            address,
            routes_of(routes, options),
            lambda consumer: self._connect_consumer(consumer, address),
            self._codec,
            self._consumers.discard,
        )

    def _connect_consumer(self, consumer: ClientConsumer, address: tuple[str, str]) -> ConsumerConnection:
        self._requests()
        self._consumers.add(consumer)
        return ConsumerConnection(
            consumer,
            address,
            self._nodes,
            headers=self._headers,
            tls=self._tls,
            patience=self._patience,
            largest=self._largest,
        )

    def _address(self, subscription: str) -> tuple[str, str]:
        return address_of(subscription, self.group)

    # Pulling

    async def pull(
        self, subscription: str, *, limit: int = 100, wait: float = 0, timeout: float | None = None
    ) -> PulledDeliveries:
        """Claims deliveries of a subscription that was created with `tracking="all"`, to be settled with `settle`.

        Any number of processes may pull at once. What is tried again comes first. What is not settled in time goes
        to others; that counts as an attempt, and after the last one the message is parked. So it is with what was
        claimed for an answer that never arrived.

        Args:
            subscription: `group/name`, or the name alone for one of the own group.
            limit: At most so many, 1 to 10,000. Defaults to 100. Their messages have at most 8 MiB together.
            wait: Seconds to wait for the first one, if there is none. Defaults to 0, at most an hour.
            timeout: Seconds to settle them in. Defaults to the subscription's own.
        """
        group, name = self._address(subscription)
        return await self._pulling().pull(group, name, limit=limit, wait=wait, timeout=timeout)

    async def settle(
        self,
        *,
        ack: DeliveriesOrTokens = (),
        retry: DeliveriesOrTokens = (),
        park: DeliveriesOrTokens = (),
        skip: DeliveriesOrTokens = (),
        extend: DeliveriesOrTokens = (),
        reason: SettleReason = "",
        after: float | None = None,
        timeout: float | None = None,
        id: UUID | None = None,
    ) -> PullSettleResult:
        """Settles deliveries that were pulled, in one transaction: each whose claim still holds.

        Each outcome takes one delivery or several, or their tokens, or a mapping of them to reasons. The result
        says which were moved and which refused. An answer that gets lost is asked for again, and is the same.

        Args:
            ack: They are done.
            retry: They failed: they come again when the subscription's policy says, and are parked at its limit.
            park: They are given up until a person decides.
            skip: They are not wanted, and done.
            extend: They take longer, and are kept for `timeout` seconds from now on.
            reason: Why, for those that failed: a text, or an exception, which is stored with its traceback.
            after: Seconds after which those of `retry` come again. Defaults to what the policy says.
            timeout: Seconds for those of `extend`. Defaults to the subscription's own.
            id: Of this request, if you want to repeat it after `Unavailable`: within five minutes it is done once,
                and answered the same. Defaults to a new one.
        """
        outcomes = {"ack": ack, "retry": retry, "park": park, "skip": skip, "extend": extend}
        return await self._pulling().settle(
            outcomes, reason=reason, after=after, timeout=timeout, id=id or uuid4()
        )

    def _pulling(self) -> HttpPuller:
        return HttpPuller(self._requests(), self._codec)

    def __repr__(self) -> str:
        return f"Client({str(self._nodes)!r})"


def _token_headers(token: str | None) -> dict[str, str]:
    if token is None:
        return {}
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("token: what `milepost token make` printed is wanted, in one word")
    return {"authorization": f"Bearer {token}"}


def _warn_of_clear_text(nodes: NodeList) -> None:
    if clear := [str(node) for node in nodes.in_turn() if not node.is_secure and not node.is_local]:
        _logger.warning("the token travels to %s in clear text: use https", ", ".join(clear))
