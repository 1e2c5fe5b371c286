"""Append, read and follow messages over HTTP."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from secrets import token_bytes
from time import time_ns
from typing import Any, Final
from uuid import UUID

import httpx
import msgspec

from milepost.client.nodes import Backoff, NodeAddress, api_path
from milepost.client.problems import ReadTookTooLong, error_of_answer
from milepost.client.transport import ApiRequest, HttpTransport, QueryParameters, decode_answer, encode_body
from milepost.errors import MilepostError, TooLarge, Unavailable
from milepost.filter import compile_filter
from milepost.log.append import check_batch, check_streams, checked_expected
from milepost.log.codec import Codec, check_stream
from milepost.log.message import ANY, STREAM_EXISTS, Appended, Message, NewMessage
from milepost.log.query import Now, Page, Selection, check_read_bounds
from milepost.names import MAX_POSITION_NUMBER, category_of
from milepost.throttled_warnings import ThrottledWarnings
from milepost.wire.messages import AppendedToStreams, Position, Version

_POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_TIME_RESOLUTION_MICROSECONDS = timedelta(microseconds=1)


class ReceivedMessage(msgspec.Struct, frozen=True):
    """A message of the log as a server tells it; its payload is not looked at."""

    position: int
    stream: str
    version: int
    id: UUID
    type: str
    time: datetime
    data: msgspec.Raw
    properties: msgspec.Raw
    metadata: msgspec.Raw

    def message(self, codec: Codec) -> Message[Any]:
        """The same as the library reads it."""
        data, properties, metadata = map(_raw_text, (self.data, self.properties, self.metadata))
        microseconds = (self.time.astimezone(UTC) - _POSTGRES_EPOCH) // _TIME_RESOLUTION_MICROSECONDS
        return Message(
            self.position,
            self.stream,
            self.version,
            self.id.bytes,
            self.type,
            microseconds.to_bytes(8, "big", signed=True),
            len(self.data) + len(self.properties) + len(self.metadata),
            data,
            properties,
            metadata,
            codec,
        )


class ReceivedMessagePage(msgspec.Struct, frozen=True):
    """Messages of one answer."""

    messages: list[ReceivedMessage]
    next: int | None
    more: bool


def messages_with_ids(codec: Codec, payloads: Iterable[Any]) -> tuple[list[NewMessage], bool]:
    """Messages that can be sent again, and whether all their ids are new ones."""
    messages = [codec.wrapped(payload) for payload in payloads]
    fresh = all(message.id is None for message in messages)
    return [message if message.id else replace(message, id=new_message_id()) for message in messages], fresh


def new_message_id() -> UUID:
    """An id that begins with the time, in milliseconds, as those that the database makes (version 7)."""
    milliseconds = (time_ns() // 1_000_000).to_bytes(6, "big")
    random = bytearray(token_bytes(10))
    random[0] = 0x70 | random[0] & 0x0F
    random[2] = 0x80 | random[2] & 0x3F
    return UUID(bytes=milliseconds + bytes(random))


def _raw_text(raw: msgspec.Raw) -> str:
    return bytes(raw).decode()


_EXPECTED_WORDS: Final = {int(ANY): "any", int(STREAM_EXISTS): "stream_exists"}


class HttpAppender:
    """Appends for a client."""

    def __init__(self, requests: HttpTransport, codec: Codec) -> None:
        self._requests = requests
        self._codec = codec

    async def append(self, stream: str, payloads: Sequence[Any], expected: int) -> Appended:
        """Appends to one stream, atomically."""
        check_batch(stream, payloads)
        word = _expected_word(expected)
        messages, fresh = messages_with_ids(self._codec, payloads)
        request = ApiRequest(
            method="POST",
            path=api_path("streams", stream),
            query=[("expected", str(word))],
            body=self._codec.encode(messages),
        )
        appended = (await self._requests.ask(request)).decode_as(Appended)
        return _not_duplicate(appended) if fresh else appended

    async def append_many(
        self, batches: Mapping[str, Sequence[Any]], expected: Mapping[str, int]
    ) -> dict[str, Appended]:
        """Appends to several streams: all or nothing."""
        check_streams(batches, expected)
        body: list[dict[str, Any]] = []
        fresh: set[str] = set()
        for stream, payloads in batches.items():
            check_batch(stream, payloads)
            messages, is_fresh = messages_with_ids(self._codec, payloads)
            raw = msgspec.Raw(self._codec.encode(messages))
            word = _expected_word(expected.get(stream, ANY))
            body.append({"stream": stream, "messages": raw, "expected": word})
            fresh |= {stream} if is_fresh else set()
        request = ApiRequest(method="POST", path=api_path("streams"), body=encode_body(body))
        told = (await self._requests.ask(request)).decode_as(AppendedToStreams)
        return {each.stream: _not_duplicate(each) if each.stream in fresh else each for each in told.appended}


def _not_duplicate(appended: Appended) -> Appended:
    """Ids that were new can be there already only because the same call was sent before."""
    return replace(appended, duplicate=False)


def _expected_word(expected: int) -> int | str:
    number = checked_expected(expected)
    return _EXPECTED_WORDS.get(number, number)


READ_PAGE_MESSAGES: Final = 1000
"""Messages of one answer at the most."""

OneOrSeveralNames = str | Sequence[str]


@dataclass(frozen=True, kw_only=True)
class ReadCriteria:
    """What somebody wants to read, checked as the library does."""

    stream: OneOrSeveralNames | None
    category: OneOrSeveralNames | None
    types: OneOrSeveralNames | None
    where: str | None
    since: datetime | None = None

    def __post_init__(self) -> None:
        Selection.of(category=self.category, stream=self.stream, types=self.types)
        if self.where is not None:
            compile_filter(self.where)

    @property
    def has_none(self) -> bool:
        """Whether no message can be wanted: the one stream is of another category."""
        if not isinstance(self.stream, str) or self.category is None:
            return False
        return category_of(self.stream) not in _name_list(self.category)

    def query(self, *, named_in_path: bool = False) -> list[tuple[str, str]]:
        """As parameters of a request."""
        kinds = [("types", self.types)]
        if not named_in_path:
            kinds += [("stream", self.stream), ("category", self.category)]
        found = [(kind, name) for kind, names in kinds for name in _name_list(names)]
        found += [("where", self.where)] if self.where is not None else []
        return found + ([("since", self.since.isoformat())] if self.since is not None else [])


class HttpReader:
    """Reads for a client."""

    def __init__(self, requests: HttpTransport, codec: Codec) -> None:
        self._requests = requests
        self._codec = codec

    async def head(self) -> int:
        """The horizon."""
        answer = await self._requests.ask(ApiRequest(method="GET", path=api_path("head")))
        return answer.decode_as(Position).position

    async def last(self, stream: str) -> int:
        """The version of a stream's last message."""
        check_stream(stream)
        answer = await self._requests.ask(ApiRequest(method="GET", path=api_path("streams", stream, "last")))
        return answer.decode_as(Version).version

    async def pages(
        self,
        wanted: ReadCriteria,
        *,
        after: int,
        after_version: int,
        before: int | None,
        before_version: int | None,
        backwards: bool,
        limit: int | None,
    ) -> AsyncGenerator[Page, None]:
        """Messages in the lists they come in."""
        check_read_bounds(
            wanted.stream,
            limit=limit,
            after=after,
            after_version=after_version,
            before=before,
            before_version=before_version,
            since=wanted.since,
        )
        if wanted.has_none or limit == 0:
            return
        paging = _PageCursor(wanted, backwards, after, after_version, before, before_version)
        left = MAX_POSITION_NUMBER if limit is None else limit
        while left > 0:
            page = await self._page(paging, min(left, READ_PAGE_MESSAGES))
            if page is None:
                continue
            messages = [paging.counted(received.message(self._codec)) for received in page.messages]
            messages = [message for message in messages if paging.is_within(message)]
            if messages:
                yield messages
            left -= len(messages)
            if not page.more or len(messages) < len(page.messages):
                return
            if paging.end is None and not backwards:
                # Somebody who appends all the time must not keep it from ending.
                paging.end = await (self.last(paging.stream) if paging.stream is not None else self.head())

    async def _page(self, paging: "_PageCursor", limit: int) -> ReceivedMessagePage | None:
        """The next page; None: nothing was found yet, and the next look goes on further."""
        query = [*paging.query(), ("limit", str(limit))]
        try:
            answer = await self._requests.ask(ApiRequest(method="GET", path=paging.path, query=query))
        except ReadTookTooLong as error:
            if error.next is None or not paging.move_bound_to(error.next):
                raise
            return None
        page = answer.decode_as(ReceivedMessagePage)
        if len(page.messages) > limit:
            raise MilepostError(
                f"the server answered {len(page.messages):,} messages where {limit:,} were asked for"
            )
        return page


class _PageCursor:
    """Where a read is: by version in one stream, else by position."""

    def __init__(
        self,
        wanted: ReadCriteria,
        backwards: bool,
        after: int,
        after_version: int,
        before: int | None,
        before_version: int | None,
    ) -> None:
        self.stream = wanted.stream if isinstance(wanted.stream, str) else None
        self.path = api_path("messages") if self.stream is None else api_path("streams", self.stream)
        self._conditions = wanted.query(named_in_path=self.stream is not None)
        self._backwards = backwards
        bounds = {
            "after": after or None,
            "after_version": after_version or None,
            "before": before,
            "before_version": before_version,
        }
        self._bounds = {name: number for name, number in bounds.items() if number is not None}
        self.end: int | None = None
        """The last place that is read; None: it is not known yet."""

    def query(self) -> QueryParameters:
        bounds = [(name, str(number)) for name, number in self._bounds.items()]
        backwards = [("backwards", "true")] if self._backwards else []
        return [*self._conditions, *bounds, *backwards]

    def counted(self, message: Message[Any]) -> Message[Any]:
        """The next page comes after this message."""
        self._bounds[self._bound] = self._place(message)
        return message

    def move_bound_to(self, place: int) -> bool:
        """The next page comes after this place; False if it is not further than the last."""
        before = self._bounds.get(self._bound, MAX_POSITION_NUMBER if self._backwards else 0)
        self._bounds[self._bound] = place
        return place < before if self._backwards else place > before

    @property
    def _bound(self) -> str:
        word = "before" if self._backwards else "after"
        return word if self.stream is None else f"{word}_version"

    def is_within(self, message: Message[Any]) -> bool:
        return self.end is None or self._place(message) <= self.end

    def _place(self, message: Message[Any]) -> int:
        return message.position if self.stream is None else message.version


def _name_list(names: OneOrSeveralNames | None) -> Sequence[str]:
    if names is None:
        return ()
    return [names] if isinstance(names, str) else names


FOLLOW_PAGE_MESSAGES: Final = 1000
"""Messages after which what has arrived is handed on."""
MAX_EVENT_LINES: Final = 16
"""Lines of an event that are looked at: a server sends three."""
REMEMBERED_MESSAGES: Final = 10_000
"""How many of the last messages are recognized when they come again."""
_logger = logging.getLogger("milepost.client")


class HttpFollower:
    """Follows for a client."""

    def __init__(
        self, requests: HttpTransport, reading: HttpReader, codec: Codec, *, patience: float, largest: int
    ) -> None:
        self._requests = requests
        self._reading = reading
        self._codec = codec
        self._patience = patience
        self._largest = largest

    async def pages(self, wanted: ReadCriteria, after: int | Now) -> AsyncGenerator[Page, None]:
        """Messages for ever, in the lists they come in; from another node where one ends it."""
        # Asked before: whoever is cut off before the first message goes on there, and misses nothing.
        position = after if isinstance(after, int) else await self._reading.head()
        begin, handed_out = str(after) if isinstance(after, int) else "now", _RecentMessages()
        complaints = ThrottledWarnings(_logger, f"following {self._requests.nodes}")
        backoff, end = Backoff(), asyncio.get_running_loop().time() + self._patience
        while True:
            for node in self._requests.nodes.in_turn():
                try:
                    async with aclosing(self._from(node, wanted, begin)) as pages:
                        async for page, token in pages:
                            end = float("inf")
                            begin = token or str(page[-1].position if page else position)
                            if fresh := handed_out.add(page):
                                position = fresh[-1].position
                                backoff.reset()
                                yield fresh
                except Unavailable as error:
                    self._requests.nodes.fails(node)
                    problem = error
            wait = backoff.wait()
            if asyncio.get_running_loop().time() + wait > end:
                raise problem
            complaints.warn(f"was cut off, and goes on after position {position}: {problem}")
            await asyncio.sleep(wait)

    async def _from(
        self, node: NodeAddress, wanted: ReadCriteria, begin: str
    ) -> AsyncGenerator[tuple[Page, str], None]:
        """What one node sends, and the token to resume after it; first an empty page, when it has begun."""
        request = ApiRequest(method="GET", path=api_path("follow"), query=[*wanted.query(), ("after", begin)])
        async with self._requests.opened(node, request, {"accept": "text/event-stream"}) as answer:
            if answer.status_code != 200:
                raise error_of_answer(await self._requests.read(answer, node), answer.status_code, node)
            self._requests.nodes.works(node)
            yield [], begin if begin != "now" else ""
            async for events in self._events(answer):
                page = [self._message(event, node) for event in events if "data" in event]
                yield page, events[-1].get("id", b"").decode(errors="replace")
        raise Unavailable(f"{node} ended it")

    async def _events(self, answer: httpx.Response) -> AsyncIterator[list[dict[str, bytes]]]:
        """Events, as many at a time as have arrived together."""
        rest = bytearray()
        async for piece in answer.aiter_raw():
            looked = max(0, len(rest) - 1)
            rest += piece
            end = rest.rfind(b"\n\n", looked)
            if len(rest) - max(end, 0) > self._largest:
                raise TooLarge("event", f"the server sent more than {self._largest:,} bytes of one event")
            if end < 0:
                continue
            events = [
                event
                for event in map(_event_fields, bytes(rest[:end]).split(b"\n\n"))
                if "data" in event or "id" in event
            ]
            del rest[: end + 2]
            for start in range(0, len(events), FOLLOW_PAGE_MESSAGES):
                yield events[start : start + FOLLOW_PAGE_MESSAGES]

    def _message(self, event: dict[str, bytes], node: NodeAddress) -> Message[Any]:
        if event.get("event") == b"problem":
            raise error_of_answer(event["data"], 200, node)
        return decode_answer(event["data"], ReceivedMessage).message(self._codec)


class _RecentMessages:
    """The last messages that a follower was given."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, bytes]] = deque(maxlen=REMEMBERED_MESSAGES)
        self._highest = 0

    def add(self, page: Page) -> Page:
        """Return the messages that were not handed out before, and remember them."""
        known: dict[int, bytes] | None = None
        fresh: Page = []
        for message in page:
            # Not by position alone: another message may stand there since the log went back.
            identity = message.identity
            if message.position <= self._highest:
                known = dict(self._recent) if known is None else known
                if known.get(message.position) == identity:
                    continue
                known[message.position] = identity
            self._highest = max(self._highest, message.position)
            self._recent.append((message.position, identity))
            fresh.append(message)
        return fresh


def _event_fields(event: bytes) -> dict[str, bytes]:
    """The fields of an event; comments have none."""
    found: dict[str, bytes] = {}
    for line in event.split(b"\n", MAX_EVENT_LINES)[:MAX_EVENT_LINES]:
        name, _, value = line.partition(b":")
        if name:
            found[name.decode(errors="replace")] = value.removeprefix(b" ")
    return found
