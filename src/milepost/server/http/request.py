"""A request whose body is decoded once, as what its handler takes."""

from functools import cache
from typing import Any

import msgspec
from litestar import Request

from milepost.server.asgi import Receive
from milepost.server.problems import INVALID, Refused


class JsonRequest(Request[Any, Any, Any]):
    """Decodes strictly: a text is no number, and what nobody asked for is refused."""

    async def json(self) -> Any:
        """The body as what the handler takes."""
        field = self.route_handler.parsed_data_field
        return decoded(await self.body(), Any if field is None else field.annotation)


def receive_of(request: JsonRequest) -> Receive:
    """What a request receives after its body: that its client has gone."""
    receive: Any = request.receive
    return receive  # type: ignore[no-any-return]


def decoded(body: bytes, wanted: Any) -> Any:
    """A body as a value; what is wrong with it is said with its place."""
    try:
        body.decode()
        return _decoder(wanted).decode(body)
    except UnicodeDecodeError as error:
        raise Refused(INVALID, f"The body is not UTF-8, from byte {error.start} on", field="body") from None
    except RecursionError:
        raise Refused(INVALID, "The body is nested too deeply", field="body") from None
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at ")
        where = place.strip("`").removeprefix("$").removeprefix(".") or "body"
        raise Refused(INVALID, f"{where}: {problem}", field=where) from None
    except msgspec.DecodeError as error:
        raise Refused(INVALID, f"The body is not JSON: {error}", field="body") from None


@cache
def _decoder(wanted: Any) -> "msgspec.json.Decoder[Any]":
    return msgspec.json.Decoder(wanted)
