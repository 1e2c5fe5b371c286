"""A request whose body is decoded once, as what its handler takes."""

from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from typing import Any

import msgspec
from litestar import Request

from milepost.server import counting
from milepost.server.asgi import Receive
from milepost.server.body import BODY, Body
from milepost.server.http.fields import SIGN, refused_for, unknown_field
from milepost.server.limits import MESSAGES_OF_A_BODY, Limits
from milepost.server.problems import INVALID, Refused
from milepost.server.wire.message import OneOrSeveral, StreamToAppend, counted

MAX_SEARCHED_BYTES = 256 * 2**10
"""The largest body in which an unknown field is looked for, to say which one was probably meant."""

APPENDS = (OneOrSeveral, list[StreamToAppend])
"""Bodies with messages, whose payloads are not decoded with them."""


class JsonRequest(Request[Any, Any, Any]):
    """Decodes strictly: a text is no number, and what nobody asked for is refused."""

    async def json(self) -> Any:
        """The body as what the handler takes."""
        field = self.route_handler.parsed_data_field
        wanted = Any if field is None else field.raw
        encoded = await self.body()
        body = body_of(self)
        is_append = field is not None and field.annotation in APPENDS
        async with body.worked_on() as step:
            for _ in (_checks_of_append if is_append else _checks)(encoded, body.limits):
                await step()
            with counted() if is_append else nullcontext():
                found = _decoded(encoded, wanted)
            await step()
            return found


def body_of(request: JsonRequest) -> Body:
    """The body of a request, as it arrived."""
    scope: Any = request.scope
    body: Body = scope[BODY]
    return body


def receive_of(request: JsonRequest) -> Receive:
    """What a request receives after its body: that its client has gone."""
    receive: Any = request.receive
    return receive  # type: ignore[no-any-return]


def decoded(body: bytes, wanted: Any, limits: Limits) -> Any:
    """A small body as a value; what is wrong with it is said with its place."""
    for _ in _checks(body, limits):
        pass
    return _decoded(body, wanted)


def _checks(body: bytes, limits: Limits) -> Iterator[None]:
    """Refuse what is not to be parsed; pause between the steps."""
    yield from counting.checks(body, containers=limits.containers, texts=limits.texts)
    yield from counting.check_text(body)


def _checks_of_append(body: bytes, limits: Limits) -> Iterator[None]:
    """The same for an append: its messages are counted while it is decoded, and each is looked at for itself."""
    yield from counting.check_body(body, MESSAGES_OF_A_BODY * limits.containers)
    yield from counting.check_text(body)


def _decoded(body: bytes, wanted: Any) -> Any:
    try:
        return _decoder(wanted).decode(body)
    except RecursionError:
        raise Refused(INVALID, "The body is nested too deeply", field="body") from None
    except msgspec.ValidationError as error:
        said = str(error)
        is_searched = said.startswith(SIGN) and len(body) <= MAX_SEARCHED_BYTES
        if is_searched and (unknown := unknown_field(body, wanted)):
            raise Refused(INVALID, str(unknown), field=unknown.field) from None
        raise refused_for(said) from None
    except msgspec.DecodeError as error:
        raise Refused(INVALID, f"The body is not JSON: {error}", field="body") from None


@cache
def _decoder(wanted: Any) -> "msgspec.json.Decoder[Any]":
    return msgspec.json.Decoder(wanted)
