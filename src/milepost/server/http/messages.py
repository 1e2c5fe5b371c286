"""Appending and reading."""

from datetime import datetime
from typing import Annotated

from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter

from milepost.app import Milepost
from milepost.log.message import Appended
from milepost.server.access.reach import Reach, Within
from milepost.server.access.role import Role
from milepost.server.http.encoding import encoded, encoded_message
from milepost.server.http.gathering import Looked, gathered
from milepost.server.http.operation import operation
from milepost.server.http.parameters import LAST, After, Category, Limit, Stream, Streams, Types, Where
from milepost.server.http.request import JsonRequest, body_of
from milepost.server.limits import USUAL_PAGE, Limits
from milepost.server.problems import FILTER, ID_REUSED, TOO_LARGE, TOOK_TOO_LONG, WRONG_VERSION
from milepost.server.wire.message import (
    AppendedToStreams,
    ExpectedWord,
    MessagePage,
    OneOrSeveral,
    Position,
    SeveralStreams,
    StreamMessage,
    Version,
    expected_version,
)
from milepost.server.wire.values import refuse_repeated

Since = Annotated[datetime | None, QueryParameter(description="Only messages of this time or later, in RFC 3339.")]
Backwards = Annotated[
    bool,
    QueryParameter(description="The newest first: give `next` as `before`, or as `before_version`."),
]


@post(
    "/streams/{stream:str}",
    status_code=200,
    operation_id="append",
    opt=operation(Role.APPEND, WRONG_VERSION, ID_REUSED, TOO_LARGE, large=True, within=Within.STREAM),
)
async def append(
    request: JsonRequest,
    mp: NamedDependency[Milepost],
    stream: Stream,
    data: JSONBody[OneOrSeveral],
    expected: Annotated[
        int | ExpectedWord,
        QueryParameter(
            description="The version that the stream must have, `no_stream`, `stream_exists`, or `any`.",
            schema_extra={"minimum": 0, "maximum": LAST},
        ),
    ] = "any",
) -> Appended:
    """Appends one message, or several atomically, to a stream.

    A message with an `id` can be sent again when it is not known whether it arrived: it is written once, and the
    answer says `duplicate`.
    """
    body = body_of(request)
    async with body.worked_on() as step:
        if isinstance(data, list):
            messages = await encoded(data, mp.codec, body.limits, step)
        else:
            messages = [encoded_message(data, mp.codec, body.limits)]
    return await mp.append(stream, messages, expected=expected_version(expected))


@post(
    "/streams",
    status_code=200,
    operation_id="append_many",
    opt=operation(Role.APPEND, WRONG_VERSION, ID_REUSED, TOO_LARGE, large=True, within=Within.ITSELF),
)
async def append_many(
    request: JsonRequest,
    mp: NamedDependency[Milepost],
    reach: NamedDependency[Reach],
    data: JSONBody[SeveralStreams],
) -> AppendedToStreams:
    """Appends to several streams: all or nothing.

    With a token that is for some categories, all of the streams have to be of these.
    """
    reach.scope.check_streams(each.stream for each in data)
    refuse_repeated("stream", [each.stream for each in data])
    body = body_of(request)
    async with body.worked_on() as step:
        messages = {
            each.stream: await encoded(each.messages, mp.codec, body.limits, step, within=f"[{number}].messages")
            for number, each in enumerate(data)
        }
    appended = await mp.append_many(
        messages, expected={each.stream: expected_version(each.expected) for each in data}
    )
    return AppendedToStreams([appended[each.stream] for each in data])


@get(
    "/streams/{stream:str}",
    operation_id="read_stream",
    opt=operation(Role.READ, FILTER, TOO_LARGE, TOOK_TOO_LONG, within=Within.STREAM),
)
async def read_stream(
    mp: NamedDependency[Milepost],
    limits: NamedDependency[Limits],
    stream: Stream,
    types: Types = None,
    where: Where = None,
    after_version: Annotated[
        int, QueryParameter(ge=0, le=LAST, description="Only higher versions. Defaults to 0: from the first.")
    ] = 0,
    before_version: Annotated[
        int | None, QueryParameter(ge=0, le=LAST, description="Only lower versions. Defaults to all.")
    ] = None,
    after: After = 0,
    since: Since = None,
    backwards: Backwards = False,
    limit: Limit = USUAL_PAGE,
) -> MessagePage:
    """The messages of a stream by version, to its last committed one. A stream without messages is empty."""
    looked = Looked()
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
    found, more = await gathered(pages, looked, limit=limit, seconds=limits.read_seconds)
    last = found[-1].version if found else _place(backwards, after_version, before_version)
    return MessagePage(list(map(StreamMessage.of, found)), last, more)


@get("/streams/{stream:str}/last", operation_id="last", opt=operation(Role.READ, TOO_LARGE, within=Within.STREAM))
async def last(mp: NamedDependency[Milepost], stream: Stream) -> Version:
    """The version of a stream's last message; 0 if it has none."""
    return Version(stream, await mp.last(stream))


@get(
    "/messages",
    operation_id="read",
    opt=operation(Role.READ, FILTER, TOO_LARGE, TOOK_TOO_LONG, within=Within.ITSELF),
)
async def read(
    mp: NamedDependency[Milepost],
    reach: NamedDependency[Reach],
    limits: NamedDependency[Limits],
    stream: Streams = None,
    category: Category = None,
    types: Types = None,
    where: Where = None,
    after: After = 0,
    before: Annotated[
        int | None, QueryParameter(ge=0, le=LAST, description="Only lower positions. Defaults to all.")
    ] = None,
    since: Since = None,
    backwards: Backwards = False,
    limit: Limit = USUAL_PAGE,
) -> MessagePage:
    """The messages of the log by position, to the horizon, behind which none can appear any more.

    With a token that is for some categories, those of these categories.
    """
    looked = Looked()
    pages = mp.read_pages(
        stream,
        category=reach.scope.narrowed(category, stream),
        types=types,
        where=where,
        after=after,
        before=before,
        since=since,
        backwards=backwards,
        limit=limit + 1,
        looked=looked,
    )
    found, more = await gathered(pages, looked, limit=limit, seconds=limits.read_seconds)
    last_one = found[-1].position if found else _place(backwards, after, before)
    return MessagePage(list(map(StreamMessage.of, found)), last_one, more)


def _place(backwards: bool, after: int, before: int | None) -> int | None:
    """Where a read went on that found nothing."""
    return before if backwards else after


@get("/head", operation_id="head", opt=operation(Role.READ, within=Within.ANY_SCOPE))
async def head(mp: NamedDependency[Milepost]) -> Position:
    """The horizon: the position up to which a read goes now."""
    return Position(await mp.head())


HANDLERS = (
    append,
    append_many,
    read_stream,
    last,
    read,
    head,
)
