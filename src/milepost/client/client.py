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
import msgspec

from milepost.client.appending import Appending
from milepost.client.consumer import Consumer
from milepost.client.following import Following
from milepost.client.line import Line
from milepost.client.managed import ManagedSubscription
from milepost.client.node import path
from milepost.client.nodes import Nodes
from milepost.client.pulling import Pulling
from milepost.client.reading import Names, Reading, Wanted
from milepost.client.requests import Request, Requests, encoded
from milepost.client.settings import sent
from milepost.dispatch import Route
from milepost.engine.consuming.created import IfExists, check_if_exists
from milepost.engine.consuming.endings import CLOSED
from milepost.engine.consuming.options import Created
from milepost.engine.consuming.routing import routes_of
from milepost.engine.declaration import a_name, address_of
from milepost.engine.info import SubscriptionInfo
from milepost.engine.pulling.pulled import Pulled
from milepost.engine.pulling.settling import Reason, Settled, Several
from milepost.engine.trace.traced import Trace
from milepost.engine.trace.tracer import LIMIT, check_asked
from milepost.engine.values import checked
from milepost.errors import MilepostError
from milepost.log.appender import batches_of, several
from milepost.log.codec import Codec
from milepost.log.feed import Now, check_after
from milepost.log.message import ANY, Appended, Message
from milepost.log.reader import Page
from milepost.log.registering import Registering
from milepost.progress.nodes import Node

if TYPE_CHECKING:
    from milepost.client.sync import SyncClient

NOT_OPEN: Final = "not open: use it inside `async with client:`, or through client.sync"
OTHER_LOOP: Final = "this client is open in another event loop: use a second one, or client.sync"

_logger = logging.getLogger("milepost.client")


class SubscriptionInfos(msgspec.Struct, frozen=True):
    """Every subscription."""

    subscriptions: list[SubscriptionInfo]


class ListedNodes(msgspec.Struct, frozen=True):
    """Every server."""

    nodes: list[Node]


class Client(Registering):
    """A Milepost that is elsewhere. `milepost.connect` makes one and says what its options are."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        token: str | None,
        group: str,
        messages: Registering | None,
        ca: str | None,
        patience: float,
        max_answer_bytes: int,
        trust: Sequence[str] = (),
    ) -> None:
        self.group = checked("group", a_name, group)
        """What the name of a subscription alone means."""
        self._nodes = Nodes(urls, trust)
        # How large a message may be is for the server to say.
        self._codec = Codec(sys.maxsize)
        if messages is not None:
            self._codec.adopt(messages._codec)
        self._headers = _headers(token)
        self._tls = ssl.create_default_context(cafile=ca) if ca is not None else httpx.create_ssl_context()
        self._patience = patience
        self._largest = max_answer_bytes
        self._open: Requests | None = None
        self._consumers: set[Consumer] = set()
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
            raise MilepostError(OTHER_LOOP)
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
            await asyncio.gather(*(consumer.leave(CLOSED) for consumer in list(self._consumers)))
            await requests.close()

    def forget(self) -> object:
        """In a forked process: what is open stayed in the parent; gives what must not be ended here."""
        left = self._open, self._consumers
        self._open, self._consumers, self._loop = None, set(), None
        self._entered = 0
        return left

    def _new_requests(self) -> Requests:
        return Requests(
            self._nodes,
            headers=self._headers,
            tls=self._tls,
            patience=self._patience,
            largest=self._largest,
        )

    def _requests(self) -> Requests:
        if self._open is None:
            raise MilepostError(NOT_OPEN)
        if asyncio.get_running_loop() is not self._loop:
            raise MilepostError(OTHER_LOOP)
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
        return await Appending(self._requests(), self._codec).append(stream, several(messages), expected)

    async def append_many(
        self, messages: Mapping[str, Any], *, expected: Mapping[str, int] | None = None
    ) -> dict[str, Appended]:
        """Append to several streams: all or nothing. The result has them in the order given.

        `expected` has a version for each stream that needs one.
        """
        batches = batches_of(messages)
        return await Appending(self._requests(), self._codec).append_many(batches, expected or {})

    async def read(
        self,
        stream: Names | None = None,
        *,
        category: Names | None = None,
        types: Names | None = None,
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
        stream: Names | None = None,
        *,
        category: Names | None = None,
        types: Names | None = None,
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
        wanted = Wanted(stream=stream, category=category, types=types, where=where, since=since)
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
        stream: Names | None = None,
        *,
        category: Names | None = None,
        types: Names | None = None,
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
        stream: Names | None = None,
        *,
        category: Names | None = None,
        types: Names | None = None,
        where: str | None = None,
        after: int | Now = 0,
    ) -> AsyncGenerator[Page, None]:
        """What `follow` gives, in lists."""
        check_after(after)
        wanted = Wanted(stream=stream, category=category, types=types, where=where)
        following = Following(
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

    def _reading(self) -> Reading:
        return Reading(self._requests(), self._codec)

    # Subscriptions

    async def subscriptions(self) -> list[SubscriptionInfo]:
        """How each subscription of every group stands: status, lag, what needs attention, lanes, their owners."""
        answer = await self._requests().ask(Request(method="GET", path=path("subscriptions")))
        return answer.as_(SubscriptionInfos).subscriptions

    async def nodes(self) -> list[Node]:
        """The servers on this database that clients can connect to, the first that came first."""
        answer = await self._requests().ask(Request(method="GET", path=path("nodes")))
        return answer.as_(ListedNodes).nodes

    async def trace(
        self,
        target: str | UUID,
        *,
        group: str | None = None,
        subscription: str | None = None,
        limit: int = LIMIT,
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
        check_asked(target, limit, before_version, group, subscription)
        words = {"group": group, "subscription": subscription, "before_version": before_version}
        query = [(name, str(value)) for name, value in words.items() if value is not None]
        request = Request(method="GET", path=path("trace", str(target)), query=[*query, ("limit", str(limit))])
        return (await self._requests().ask(request)).as_(Trace)

    async def create_subscription(
        self, /, name: str, *, if_exists: IfExists = "update", **options: Any
    ) -> ManagedSubscription:
        """Creates a durable subscription for consumers, or for pulling with `tracking="all"`.

        Its options are those of `milepost.engine.consuming.options.Created`; they are stored, and
        `manage(…).update` changes them while consumers run. What `manage` gives is returned.

        Args:
            name: `group/name`, or the name alone for one of the own group.
            if_exists: "update" (the default) changes its settings to these, "error" raises `AlreadyExists`,
                "ignore" leaves it as it is.
        """
        group, own = self._address(name)
        check_if_exists(if_exists)
        checked("group", a_name, group)
        Created.of(own, options)
        body = {"name": own, "group": group, "if_exists": if_exists, **sent(options)}
        request = Request(
            method="POST", path=path("subscriptions"), body=encoded(body), repeatable=if_exists != "error"
        )
        await self._requests().ask(request)
        return self.manage(name)

    def manage(self, address: str) -> ManagedSubscription:
        """A subscription to look at and to operate: `group/name`, or the name alone for one of the own group."""
        return ManagedSubscription(*self._address(address), self._requests, self._codec)

    def consumer(
        self,
        subscription: str,
        *,
        where: str | None = None,
        priority: int | None = None,
        capacity: int | None = None,
        capacity_bytes: int | None = None,
        routes: Sequence[Route] | None = None,
    ) -> Consumer:
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
        return Consumer(
            address,
            routes_of(routes, options),
            lambda consumer: self._line(consumer, address),
            self._codec,
            self._consumers.discard,
        )

    def _line(self, consumer: Consumer, address: tuple[str, str]) -> Line:
        self._requests()
        self._consumers.add(consumer)
        return Line(
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
    ) -> Pulled:
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
        ack: Several = (),
        retry: Several = (),
        park: Several = (),
        skip: Several = (),
        extend: Several = (),
        reason: Reason = "",
        after: float | None = None,
        timeout: float | None = None,
        id: UUID | None = None,
    ) -> Settled:
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

    def _pulling(self) -> Pulling:
        return Pulling(self._requests(), self._codec)

    def __repr__(self) -> str:
        return f"Client({str(self._nodes)!r})"


def _headers(token: str | None) -> dict[str, str]:
    if token is None:
        return {}
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("token: what `milepost token make` printed is wanted, in one word")
    return {"authorization": f"Bearer {token}"}


def _warn_of_clear_text(nodes: Nodes) -> None:
    if clear := [str(node) for node in nodes.in_turn() if not node.is_secure and not node.is_local]:
        _logger.warning("the token travels to %s in clear text: use https", ", ".join(clear))
