"""The log: messages at positions with gaps."""

from typing import Any

import msgspec


class Message(msgspec.Struct, frozen=True):
    """One message; `number` is the property that definitions and routes look at."""

    position: int
    key: str
    number: int
    size: int
    properties: dict[str, Any]


class Log:
    """All messages in order, and up to where nothing can appear any more."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.by_key: dict[str, list[Message]] = {}
        self.by_position: dict[int, Message] = {}
        self.horizon = 0

    def append(self, key: str, number: int, size: int, gap: int) -> Message:
        """A new message, `gap` positions beyond the next free one."""
        self.horizon += 1 + gap
        properties = {"n": number, "even": number % 2 == 0}
        message = Message(self.horizon, key, number, size, properties)
        self.messages.append(message)
        self.by_key.setdefault(key, []).append(message)
        self.by_position[message.position] = message
        return message
