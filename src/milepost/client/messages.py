"""Messages as they are sent and received, and as the library has them."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from secrets import token_bytes
from time import time_ns
from typing import Any
from uuid import UUID

import msgspec

from milepost.log.codec import Codec
from milepost.log.message import Message, NewMessage

_TIME_ZERO = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


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
        data, properties, metadata = map(_text, (self.data, self.properties, self.metadata))
        microseconds = (self.time.astimezone(UTC) - _TIME_ZERO) // _MICROSECOND
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


class MessagePage(msgspec.Struct, frozen=True):
    """Messages of one answer."""

    messages: list[ReceivedMessage]
    next: int | None
    more: bool


def with_ids(codec: Codec, payloads: Iterable[Any]) -> tuple[list[NewMessage], bool]:
    """Messages that can be sent again, and whether all their ids are new ones."""
    messages = [codec.wrapped(payload) for payload in payloads]
    fresh = all(message.id is None for message in messages)
    return [message if message.id else replace(message, id=new_id()) for message in messages], fresh


def new_id() -> UUID:
    """An id that begins with the time, in milliseconds, as those that the database makes (version 7)."""
    milliseconds = (time_ns() // 1_000_000).to_bytes(6, "big")
    random = bytearray(token_bytes(10))
    random[0] = 0x70 | random[0] & 0x0F
    random[2] = 0x80 | random[2] & 0x3F
    return UUID(bytes=milliseconds + bytes(random))


def _text(raw: msgspec.Raw) -> str:
    return bytes(raw).decode()
