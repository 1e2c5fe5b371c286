"""The log: messages at positions with gaps."""

from copy import copy
from itertools import count
from typing import Any

import msgspec


class Message(msgspec.Struct, frozen=True):
    """One message; `number` is the property that definitions and routes look at."""

    position: int
    key: str
    number: int
    size: int
    properties: dict[str, Any]
    id: int = 0
    """Never given twice; a position is, when the log goes back."""


ORDERS = ("key", "number", "none")
"""What messages may be kept in order by."""


def key_of(message: Message, order: str) -> str | None:
    """What a message is kept in order with."""
    if order == "none":
        return None
    return message.key if order == "key" else f"n{message.number % 3}"


class Log:
    """All messages in order, and up to where nothing can appear any more."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.by_key: dict[str, list[Message]] = {}
        self.by_position: dict[int, Message] = {}
        self.horizon = 0
        self._ids = count(1)

    def copied(self) -> "Log":
        """Return a copy. Both draw from the same ids, and each its own positions."""
        other = copy(self)
        other.messages = list(self.messages)
        other.by_key = {key: list(messages) for key, messages in self.by_key.items()}
        other.by_position = dict(self.by_position)
        return other

    def append(self, key: str, number: int, size: int, gap: int) -> Message:
        """A new message, `gap` positions beyond the next free one."""
        self.horizon += 1 + gap
        properties = {"n": number, "even": number % 2 == 0}
        message = Message(self.horizon, key, number, size, properties, next(self._ids))
        self.messages.append(message)
        for order in ORDERS:
            if (by := key_of(message, order)) is not None:
                self.by_key.setdefault(by, []).append(message)
        self.by_position[message.position] = message
        return message
