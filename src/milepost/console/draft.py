"""A message that somebody writes: the fields of a form, and what is wrong with them."""

from dataclasses import dataclass

import msgspec

from milepost.console.typed_json import checked_json, object_of
from milepost.console.visit import Visit
from milepost.errors import InvalidMessage
from milepost.log.codec import Codec
from milepost.log.message import ANY, NO_STREAM, STREAM_EXISTS, NewMessage
from milepost.server.limits import Limits

_EXPECTED: dict[str, int] = {"any": ANY, "no_stream": NO_STREAM, "stream_exists": STREAM_EXISTS}
_LONGEST_NUMBER = 18
"""Digits that always fit into 64 bits."""


@dataclass(frozen=True, kw_only=True)
class Draft:
    """What was typed."""

    stream: str = ""
    type: str = ""
    data: str = "{}"
    properties: str = ""
    metadata: str = ""
    id: str = ""
    expected: str = "any"
    """`any`, `no_stream`, `stream_exists` or `version`."""
    version: str = ""
    """With `version`: which."""

    @classmethod
    def sent(cls, visit: Visit) -> "Draft":
        """What a form brought."""
        names = ("stream", "type", "data", "properties", "metadata", "id", "expected", "version")
        return cls(**{name: visit.sent(name) for name in names})

    def message(self, codec: Codec, limits: Limits) -> NewMessage:
        """The message; `InvalidMessage` says which field is wrong, and why."""
        codec.check_size(self.type, sum(map(len, (self.data, self.properties, self.metadata))))
        return NewMessage(
            self.type,
            msgspec.Raw(checked_json("data", self.data or "null", limits)),
            properties=object_of("properties", self.properties, limits),
            metadata=object_of("metadata", self.metadata, limits),
            id=self.id.strip() or None,
        )

    def expected_version(self) -> int:
        """What the stream's version has to be."""
        text = self.version.strip().replace(",", "")
        if self.expected in _EXPECTED and not text:
            return _EXPECTED[self.expected]
        if self.expected in _EXPECTED:
            raise InvalidMessage("version", 'choose "at this version" as well, or leave the number out')
        if not text.isascii() or not text.isdigit() or len(text) > _LONGEST_NUMBER:
            raise InvalidMessage("version", "a number from 0 on is wanted, such as the stream's last version")
        return int(text)
