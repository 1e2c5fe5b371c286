"""Messages on the wire: those to append, those that were read, and the results of an append."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from msgspec import Meta

from milepost.errors import InvalidMessage, TooLarge
from milepost.log.append import MAX_APPEND_MESSAGES
from milepost.log.message import ANY, NO_STREAM, STREAM_EXISTS, Appended, Message, Property
from milepost.wire.values import NonEmptyText, PositionOrVersion, schema_words

ExpectedWord = Literal["any", "no_stream", "stream_exists"]

_EXPECTED_WORDS: dict[str, int] = {"any": ANY, "no_stream": NO_STREAM, "stream_exists": STREAM_EXISTS}


PROPERTIES_SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "boolean"}]},
    "default": {},
}
"""How properties are described, which are decoded message by message."""
EMPTY_OBJECT = msgspec.Raw(b"{}")


class MessageToAppend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message to append."""

    type: Annotated[str, schema_words(minLength=1, pattern="^[^*>]+$")]
    """What kind of message it is; may be dotted. `*` and `>` stand for other types where types are selected."""
    data: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    """The payload: any JSON. It stays as it was written, so that no digit of a number is lost."""
    properties: Annotated[msgspec.Raw, schema_words(**PROPERTIES_SCHEMA)] = msgspec.field(
        default_factory=lambda: EMPTY_OBJECT
    )
    """Flat values that filters look at: integers of 64 bits, strings and booleans."""
    metadata: Annotated[msgspec.Raw, schema_words(type="object", additionalProperties={}, default={})] = (
        msgspec.field(default_factory=lambda: EMPTY_OBJECT)
    )
    """What describes the message, such as `correlation_id`."""
    id: Annotated[str, schema_words(format="uuid")] | None = None
    """A UUID. With one the append can be repeated safely; without one the server makes it."""

    def __post_init__(self) -> None:
        _count_message()


class StreamToAppend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be appended to one stream."""

    stream: NonEmptyText
    messages: Annotated[list[MessageToAppend], schema_words(minItems=1, maxItems=MAX_APPEND_MESSAGES)]
    """At least one; those of all streams together are at most 10,000."""
    expected: PositionOrVersion | ExpectedWord = "any"
    """The version that the stream must have, `no_stream`, `stream_exists`, or `any`."""

    def __post_init__(self) -> None:
        if not self.messages:
            raise InvalidMessage("messages", "at least one for each stream is wanted")


OneOrSeveralMessages: TypeAlias = (
    MessageToAppend | Annotated[list[MessageToAppend], Meta(max_length=MAX_APPEND_MESSAGES)]
)
SeveralStreams: TypeAlias = Annotated[list[StreamToAppend], Meta(max_length=MAX_APPEND_MESSAGES)]


class _MessagesLeft:
    """How many messages an append may still have."""

    __slots__ = ("messages",)

    def __init__(self) -> None:
        self.messages = MAX_APPEND_MESSAGES


_messages_left: ContextVar[_MessagesLeft | None] = ContextVar("left", default=None)


@contextmanager
def limit_message_count() -> Iterator[None]:
    """A block that decodes one append, and ends with `TooLarge` at the first message that is too many."""
    token = _messages_left.set(_MessagesLeft())
    try:
        yield
    finally:
        _messages_left.reset(token)


def _count_message() -> None:
    if (left := _messages_left.get()) is not None:
        left.messages -= 1
        if left.messages < 0:
            raise TooLarge("messages", f"more than {MAX_APPEND_MESSAGES:,} of them in one append: send several")


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
        return _EXPECTED_WORDS[given]
    if given < 0:
        raise InvalidMessage("expected", f"a version from 0 on is wanted, not {given}")
    return given
