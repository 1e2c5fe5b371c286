"""Messages of a small shop, made without a database."""

import json
from dataclasses import dataclass
from typing import Any

import msgspec

from milepost.engine.declare.context import Context
from milepost.engine.declare.subscription import ProgramSubscriptions
from milepost.log.codec import Codec, MessageClass
from milepost.log.message import Message


@dataclass
class Placed:
    order: int


class Cancelled(msgspec.Struct):
    order: int


@dataclass
class Refunded:
    order: int


@dataclass
class Unregistered:
    order: int


class Session:
    """Something that has to be closed."""


class Clock:
    """Something that is simply there."""


class Mailer:
    """Something that needs another."""

    def __init__(self, session: Session) -> None:
        self.session = session


CODEC = Codec(2**20)
CLASSES: dict[type, MessageClass] = {
    Placed: MessageClass(Placed, "order.placed", 1, ("OrderPlaced",), ()),
    Cancelled: MessageClass(Cancelled, "order.cancelled", 1, (), ()),
    Refunded: MessageClass(Refunded, "order.refunded", 2, (), ()),
}
for declared in CLASSES.values():
    CODEC.register(declared)


def subscriptions() -> ProgramSubscriptions:
    """A program that has declared nothing but its messages."""
    return ProgramSubscriptions(CLASSES.get)


def message(
    type: str = "order.placed",
    data: Any = None,
    *,
    position: int = 1,
    stream: str = "order-1",
    properties: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
) -> Message[Any]:
    """A message as it would be read."""
    return Message(
        position,
        stream,
        1,
        bytes(16),
        type,
        bytes(8),
        10,
        json.dumps({"order": position} if data is None else data),
        json.dumps(properties or {}),
        json.dumps(metadata or {}),
        CODEC,
    )


def context(**fields: Any) -> Context:
    """The circumstances of a first attempt."""
    return Context(**{"subscription": "invoices", "position": 1, **fields})
