"""Messages as they are sent and received."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from milepost.errors import InvalidMessage
from milepost.log.message import ANY, NO_STREAM, STREAM_EXISTS, Appended, Message, NewMessage, Property
from milepost.server.wire.values import At, Text, described

ExpectedWord = Literal["any", "no_stream", "stream_exists"]

_EXPECTED: dict[str, int] = {"any": ANY, "no_stream": NO_STREAM, "stream_exists": STREAM_EXISTS}


class MessageToAppend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message to append."""

    type: Text
    """What kind of message it is; may be dotted."""
    data: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    """The payload: any JSON. It stays as it was written, so that no digit of a number is lost."""
    properties: dict[str, Property] = {}
    """Flat values that filters look at: integers of 64 bits, strings and booleans."""
    metadata: dict[str, Any] = {}
    """What describes the message, such as `correlation_id`."""
    id: Annotated[str, described(format="uuid")] | None = None
    """A UUID. With one the append can be repeated safely; without one the server makes it."""

    def unpacked(self) -> NewMessage:
        """The same as the library takes it."""
        return NewMessage(
            self.type, _decodable(self.data), properties=self.properties, metadata=self.metadata, id=self.id
        )


class StreamToAppend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be appended to one stream."""

    stream: Text
    messages: Annotated[list[MessageToAppend], described(minItems=1)]
    """At least one."""
    expected: At | ExpectedWord = "any"
    """The version that the stream must have, `no_stream`, `stream_exists`, or `any`."""


class StreamMessage(msgspec.Struct, frozen=True, gc=False):
    """A message of the log."""

    position: int
    """Its place in the log."""
    stream: str
    version: int
    """Its place in its stream, from 1."""
    id: UUID
    type: str
    time: datetime
    """When it was appended, by the database's clock."""
    data: Any
    """The payload: any JSON."""
    properties: dict[str, Property]
    metadata: dict[str, Any]

    @classmethod
    def of(cls, message: Message[Any]) -> "StreamMessage":
        """A message as it was read; what is JSON is passed on as it is stored."""
        raw = message.raw_properties
        properties: Any = message.properties if raw is None else msgspec.Raw(raw.encode())
        metadata: Any = msgspec.Raw(message.raw_metadata.encode())
        return cls(
            message.position,
            message.stream,
            message.version,
            message.id,
            message.type,
            message.time,
            msgspec.Raw(message.raw.encode()),
            properties,
            metadata,
        )


class MessagePage(msgspec.Struct, frozen=True):
    """Messages in order."""

    messages: list[StreamMessage]
    next: int | None
    """What to give as `after`, or as `after_version` for one stream, to go on after these. Backwards it is for
    `before` or `before_version`, and null where nothing was found."""
    more: bool
    """Whether there are more now."""


class Position(msgspec.Struct, frozen=True):
    """A place in the log."""

    position: int


class Version(msgspec.Struct, frozen=True):
    """The version of a stream's last message."""

    stream: str
    version: int
    """0: it has none."""


class AppendedToStreams(msgspec.Struct, frozen=True):
    """What became of an append to several streams."""

    appended: list[Appended]
    """For each of them, in the order of the request."""


def expected_version(given: int | str) -> int:
    """The version that a stream must have, as the library takes it."""
    if isinstance(given, str):
        return _EXPECTED[given]
    if given < 0:
        raise InvalidMessage("expected", f"a version from 0 on is wanted, not {given}")
    return given


def _decodable(data: msgspec.Raw) -> msgspec.Raw:
    """The payload, refused where a reader could not decode it."""
    try:
        msgspec.json.decode(data)
    except RecursionError:
        raise InvalidMessage("data", "it is nested too deeply") from None
    except msgspec.DecodeError as error:
        raise InvalidMessage("data", str(error)) from None
    return data
