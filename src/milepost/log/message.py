"""What is appended and what is read."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar
from uuid import UUID

import msgspec

from milepost.names import category_of

if TYPE_CHECKING:
    from milepost.log.codec import Codec

T = TypeVar("T")

_TIME_ZERO = datetime(2000, 1, 1, tzinfo=UTC)

Property: TypeAlias = int | str | bool


class Expected(IntEnum):
    """What a stream's version may be for an append, where it is not a number."""

    ANY = -2
    STREAM_EXISTS = -1
    NO_STREAM = 0


ANY: Final = Expected.ANY
"""Append whatever the stream's version is."""
STREAM_EXISTS: Final = Expected.STREAM_EXISTS
"""Append only if the stream has a message already."""
NO_STREAM: Final = Expected.NO_STREAM
"""Append only if the stream has no message yet."""


def id_in(metadata: Mapping[str, Any], name: str) -> str | int | None:
    """Return `correlation_id` or `causation_id` of a message's metadata; an empty one counts as none."""
    value = metadata.get(name)
    return value if isinstance(value, str | int) and not isinstance(value, bool) and value != "" else None


@dataclass(frozen=True)
class NewMessage:
    """A message to append, where no class is registered for it.

    `data` is a JSON value, a dataclass, a msgspec struct or a Pydantic model. `properties` are flat integers
    of 64 bits, strings and booleans that filters look at. With an `id` the append can be repeated safely;
    without one the database makes it.
    """

    type: str
    data: Any = None
    properties: Mapping[str, Property] = field(default_factory=dict, kw_only=True)
    metadata: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    id: UUID | str | None = field(default=None, kw_only=True)


class EncodedObject(Mapping[str, Any]):
    """A JSON object that was checked, and is decoded only for whoever looks into it, each time anew.

    Decoded, it can take twenty times as much memory.
    """

    __slots__ = ("raw",)

    def __init__(self, raw: msgspec.Raw) -> None:
        self.raw = raw

    def __getitem__(self, name: str) -> Any:
        return self._decoded()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded())

    def __len__(self) -> int:
        return len(self._decoded())

    def _decoded(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.raw)
        return found


@dataclass(frozen=True)
class EncodedMessage(NewMessage):
    """A message that arrived as JSON; it was checked, and encoded for the append, which takes it as it is."""

    encoded: msgspec.Raw = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append came to: version and position of its last message, and how many messages they were.

    `duplicate` says that the messages were in the stream already, and that nothing was written.
    """

    stream: str
    version: int
    position: int
    duplicate: bool
    count: int = 1


class Message(msgspec.Struct, Generic[T], eq=False, gc=False):
    """A message as it was read. Do not change what it returns: others in the process read the same object."""

    position: int
    stream: str
    version: int
    _id: bytes
    type: str
    _time: bytes
    size: int
    raw: str
    _properties: Any
    _metadata: str
    _codec: "Codec"
    _decoded: Any = msgspec.UNSET

    # As PostgreSQL sends them: most readers never ask, and making the objects takes a third of a read.

    @property
    def id(self) -> UUID:
        """What makes the message itself: a repeated append has the same."""
        return UUID(bytes=bytes(self._id))

    @property
    def time(self) -> datetime:
        """When it was appended, by the database's clock."""
        return _TIME_ZERO + timedelta(microseconds=int.from_bytes(self._time, "big", signed=True))

    @property
    def identity(self) -> bytes:
        """The id and the time, as bytes: the same message, appended again, has another time."""
        return bytes(self._id) + bytes(self._time)

    @property
    def category(self) -> str:
        """What stands before the first dash of the stream's name."""
        return category_of(self.stream)

    @property
    def data(self) -> T:
        """The payload, decoded when first asked for: an instance of the type's class, if one is registered.

        Raises `InvalidMessage` where it does not fit that class; `raw` has its JSON.
        """
        if self._decoded is msgspec.UNSET:
            self._decoded = self._codec.decode(self)
        value: T = self._decoded
        return value

    @property
    def properties(self) -> dict[str, Property]:
        """The flat, typed values that filters look at."""
        if isinstance(self._properties, str):
            self._properties = msgspec.json.decode(self._properties)
        found: dict[str, Property] = self._properties
        return found

    @property
    def metadata(self) -> dict[str, Any]:
        """What describes the message: `correlation_id`, `causation_id`, the trace's context."""
        found: dict[str, Any] = msgspec.json.decode(self._metadata)
        return found

    @property
    def raw_properties(self) -> str | None:
        """Their JSON as it is stored; None: somebody has asked for them, and they are at hand."""
        return self._properties if isinstance(self._properties, str) else None

    @property
    def raw_metadata(self) -> str:
        """Its JSON as it is stored."""
        return self._metadata

    def __repr__(self) -> str:
        return f"Message({self.type!r}, {self.stream!r} {self.version}, position {self.position})"
