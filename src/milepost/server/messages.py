"""Streams and messages over HTTP: append, read a stream or the log, last version, head."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any

import msgspec
from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter

from milepost.app import Milepost
from milepost.errors import InvalidMessage
from milepost.log.codec import Codec
from milepost.log.message import Appended, EncodedMessage, EncodedObject, Message, NewMessage, Property
from milepost.log.query import Page
from milepost.names import MAX_POSITION_NUMBER
from milepost.server.access.permissions import TokenRole
from milepost.server.access.scope_guard import ScopeGuard, ScopeRule
from milepost.server.http.body import YieldStep
from milepost.server.http.handlers import (
    After,
    Category,
    Limit,
    Stream,
    Streams,
    Types,
    Where,
    operation,
)
from milepost.server.http.json_body import JsonRequest, refusal_of_decoding, request_body
from milepost.server.http.json_limits import check_container_count, check_depth, count_containers
from milepost.server.limits import DEFAULT_PAGE_ITEMS, PAGE_BYTES, Limits
from milepost.server.problems import FILTER, ID_REUSED, TOO_LARGE, TOOK_TOO_LONG, WRONG_VERSION, RequestRefused
from milepost.wire.messages import (
    AppendedToStreams,
    ExpectedWord,
    MessagePage,
    MessageToAppend,
    OneOrSeveralMessages,
    Position,
    SeveralStreams,
    StreamMessage,
    Version,
    expected_version,
)
from milepost.wire.values import refuse_repeated


class ReadProgress:
    """How far a read has looked that has found nothing yet."""

    def __init__(self) -> None:
        self.to: int | None = None
        """Where to go on; None: at its beginning."""

    def __call__(self, to: int) -> None:
        """So far."""
        self.to = to


async def gather_page(
    pages: AsyncGenerator[Page, None], looked: ReadProgress, *, limit: int, seconds: float
) -> tuple[list[Message[Any]], bool]:
    """The first messages of a read, and whether there may be more. The read has to go beyond the limit by one."""
    found: list[Message[Any]] = []
    try:
        async with asyncio.timeout(seconds) as deadline, aclosing(pages):
            more = await _gather_messages(pages, found, limit)
    except TimeoutError:
        if not deadline.expired():
            raise
        if not found:
            raise RequestRefused(
                TOOK_TOO_LONG,
                f"Nothing that matches was found in {seconds:g} seconds: narrow it by category, stream or since, "
                "or go on at next",
                next=looked.to,
            ) from None
        return found, True
    return found, more


async def _gather_messages(pages: AsyncGenerator[Page, None], found: list[Message[Any]], limit: int) -> bool:
    size = 0
    async for page in pages:
        for message in page:
            if len(found) == limit or (found and size + message.size > PAGE_BYTES):
                return True
            found.append(message)
            size += message.size
    return False


_json_decoder: "msgspec.json.Decoder[Any]" = msgspec.json.Decoder()
_properties_decoder = msgspec.json.Decoder(dict[str, Property])
_metadata_decoder = msgspec.json.Decoder(dict[str, Any])


async def encode_messages(
    messages: Sequence[MessageToAppend], codec: Codec, limits: Limits, step: YieldStep, *, within: str = ""
) -> list[EncodedMessage]:
    """Messages as the library takes them; `within` is the part of the body that has them."""
    found = []
    for number, message in enumerate(messages):
        found.append(encode_message(message, codec, limits, within=f"{within}[{number}]"))
        await step()
    return found


def encode_message(message: MessageToAppend, codec: Codec, limits: Limits, *, within: str = "") -> EncodedMessage:
    """One of them; what is wrong with it is said with its place."""
    codec.check_size(message.type, len(message.data) + len(message.properties) + len(message.metadata))
    data, metadata = bytes(message.data), bytes(message.metadata)
    has_metadata = len(metadata) > len(b"{}")
    check_container_count("message", count_containers(data + metadata) - (not has_metadata), limits.containers)
    for field, text in (("data", data), ("metadata", metadata)):
        check_depth(field, text, limits.depth)
    _check_payload(data)
    try:
        # What is decoded only to be checked is forgotten at once: it may take twenty times as much memory.
        _metadata_decoder.decode(metadata)
    except msgspec.ValidationError as error:
        raise refusal_of_decoding(str(error), f"{within}.metadata") from None
    try:
        properties = _properties_decoder.decode(message.properties)
    except msgspec.ValidationError as error:
        raise refusal_of_decoding(str(error), f"{within}.properties") from None
    return codec.encoded(
        NewMessage(
            message.type,
            message.data,
            properties=properties,
            metadata=EncodedObject(message.metadata) if has_metadata else {},
            id=message.id,
        )
    )


def _check_payload(data: bytes) -> None:
    """Refuse a payload that a reader could not decode."""
    try:
        _json_decoder.decode(data)
    except RecursionError:
        raise InvalidMessage("data", "it is nested too deeply") from None
    except msgspec.DecodeError as error:
        raise InvalidMessage("data", str(error)) from None


Since = Annotated[datetime | None, QueryParameter(description="Only messages of this time or later, in RFC 3339.")]
Backwards = Annotated[
    bool,
    QueryParameter(description="The newest first: give `next` as `before`, or as `before_version`."),
]


@post(
    "/streams/{stream:str}",
    status_code=200,
    operation_id="append",
    opt=operation(TokenRole.APPEND, WRONG_VERSION, ID_REUSED, TOO_LARGE, large=True, scope_rule=ScopeRule.STREAM),
)
async def append_to_stream(
    request: JsonRequest,
    mp: NamedDependency[Milepost],
    stream: Stream,
    data: JSONBody[OneOrSeveralMessages],
    expected: Annotated[
        int | ExpectedWord,
        QueryParameter(
            description="The version that the stream must have, `no_stream`, `stream_exists`, or `any`.",
            schema_extra={"minimum": 0, "maximum": MAX_POSITION_NUMBER},
        ),
    ] = "any",
) -> Appended:
    """Appends one message, or several atomically, to a stream.

    A message with an `id` can be sent again when it is not known whether it arrived: it is written once, and the
    answer says `duplicate`.
    """
    body = request_body(request)
    async with body.work_turn() as step:
        if isinstance(data, list):
            messages = await encode_messages(data, mp.codec, body.limits, step)
        else:
            messages = [encode_message(data, mp.codec, body.limits)]
    return await mp.append(stream, messages, expected=expected_version(expected))


@post(
    "/streams",
    status_code=200,
    operation_id="append_many",
    opt=operation(TokenRole.APPEND, WRONG_VERSION, ID_REUSED, TOO_LARGE, large=True, scope_rule=ScopeRule.ITSELF),
)
async def append_to_streams(
    request: JsonRequest,
    mp: NamedDependency[Milepost],
    scope_guard: NamedDependency[ScopeGuard],
    data: JSONBody[SeveralStreams],
) -> AppendedToStreams:
    """Appends to several streams: all or nothing.

    With a token that is for some categories, all of the streams have to be of these.
    """
    scope_guard.scope.check_streams(each.stream for each in data)
    refuse_repeated("stream", [each.stream for each in data])
    body = request_body(request)
    async with body.work_turn() as step:
        messages = {
            each.stream: await encode_messages(
                each.messages, mp.codec, body.limits, step, within=f"[{number}].messages"
            )
            for number, each in enumerate(data)
        }
    appended = await mp.append_many(
        messages, expected={each.stream: expected_version(each.expected) for each in data}
    )
    return AppendedToStreams([appended[each.stream] for each in data])


@get(
    "/streams/{stream:str}",
    operation_id="read_stream",
    opt=operation(TokenRole.READ, FILTER, TOO_LARGE, TOOK_TOO_LONG, scope_rule=ScopeRule.STREAM),
)
async def read_stream(
    mp: NamedDependency[Milepost],
    limits: NamedDependency[Limits],
    stream: Stream,
    types: Types = None,
    where: Where = None,
    after_version: Annotated[
        int,
        QueryParameter(
            ge=0, le=MAX_POSITION_NUMBER, description="Only higher versions. Defaults to 0: from the first."
        ),
    ] = 0,
    before_version: Annotated[
        int | None,
        QueryParameter(ge=0, le=MAX_POSITION_NUMBER, description="Only lower versions. Defaults to all."),
    ] = None,
    after: After = 0,
    since: Since = None,
    backwards: Backwards = False,
    limit: Limit = DEFAULT_PAGE_ITEMS,
) -> MessagePage:
    """The messages of a stream by version, to its last committed one. A stream without messages is empty."""
    looked = ReadProgress()
    pages = mp.read_pages(
        stream,
        types=types,
        where=where,
        after=after,
        after_version=after_version,
        before_version=before_version,
        since=since,
        backwards=backwards,
        limit=limit + 1,
        looked=looked,
    )
    found, more = await gather_page(pages, looked, limit=limit, seconds=limits.read_seconds)
    last = found[-1].version if found else _place_reached(backwards, after_version, before_version)
    return MessagePage(list(map(StreamMessage.of, found)), last, more)


@get(
    "/streams/{stream:str}/last",
    operation_id="last",
    opt=operation(TokenRole.READ, TOO_LARGE, scope_rule=ScopeRule.STREAM),
)
async def last_version(mp: NamedDependency[Milepost], stream: Stream) -> Version:
    """The version of a stream's last message; 0 if it has none."""
    return Version(stream, await mp.last(stream))


@get(
    "/messages",
    operation_id="read",
    opt=operation(TokenRole.READ, FILTER, TOO_LARGE, TOOK_TOO_LONG, scope_rule=ScopeRule.ITSELF),
)
async def read_log(
    mp: NamedDependency[Milepost],
    scope_guard: NamedDependency[ScopeGuard],
    limits: NamedDependency[Limits],
    stream: Streams = None,
    category: Category = None,
    types: Types = None,
    where: Where = None,
    after: After = 0,
    before: Annotated[
        int | None,
        QueryParameter(ge=0, le=MAX_POSITION_NUMBER, description="Only lower positions. Defaults to all."),
    ] = None,
    since: Since = None,
    backwards: Backwards = False,
    limit: Limit = DEFAULT_PAGE_ITEMS,
) -> MessagePage:
    """The messages of the log by position, to the horizon, behind which none can appear any more.

    With a token that is for some categories, those of these categories.
    """
    looked = ReadProgress()
    pages = mp.read_pages(
        stream,
        category=scope_guard.scope.narrowed(category, stream),
        types=types,
        where=where,
        after=after,
        before=before,
        since=since,
        backwards=backwards,
        limit=limit + 1,
        looked=looked,
    )
    found, more = await gather_page(pages, looked, limit=limit, seconds=limits.read_seconds)
    last_one = found[-1].position if found else _place_reached(backwards, after, before)
    return MessagePage(list(map(StreamMessage.of, found)), last_one, more)


def _place_reached(backwards: bool, after: int, before: int | None) -> int | None:
    """Where a read went on that found nothing."""
    return before if backwards else after


@get("/head", operation_id="head", opt=operation(TokenRole.READ, scope_rule=ScopeRule.ANY_SCOPE))
async def log_head(mp: NamedDependency[Milepost]) -> Position:
    """The horizon: the position up to which a read goes now."""
    return Position(await mp.head())


HANDLERS = (
    append_to_stream,
    append_to_streams,
    read_stream,
    last_version,
    read_log,
    log_head,
)
