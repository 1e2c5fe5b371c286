"""What is said on a WebSocket: frames that the server sends, and those that the client does."""

from typing import Any, Final, TypeAlias, get_args

import msgspec

from milepost.client.messages import ReceivedMessage
from milepost.dispatch import Route
from milepost.wire.frames import (
    DeliveryId,
    DoneFrame,
    EndFrame,
    LostFrame,
    PongFrame,
    ProblemFrame,
    RecallFrame,
    ServerFrame,
    SettledFrame,
    StandbyFrame,
    WelcomeFrame,
)


class ReceivedFrameDelivery(msgspec.Struct, frozen=True):
    """A message on its way."""

    id: DeliveryId
    attempt: int
    route: str
    replay: bool
    message: ReceivedMessage


class DeliveriesFrame(ServerFrame, frozen=True, kw_only=True, tag="deliveries"):
    """Messages for this consumer."""

    deliveries: list[ReceivedFrameDelivery]


AnyReceivedFrame: TypeAlias = (
    WelcomeFrame
    | StandbyFrame
    | DeliveriesFrame
    | SettledFrame
    | LostFrame
    | RecallFrame
    | DoneFrame
    | PongFrame
    | ProblemFrame
    | EndFrame
)


class _FrameWithType(msgspec.Struct, frozen=True):
    type: str


_frame_decoder: "msgspec.json.Decoder[AnyReceivedFrame]" = msgspec.json.Decoder(AnyReceivedFrame)
_type_decoder = msgspec.json.Decoder(_FrameWithType)
_KNOWN_TYPES: Final = frozenset(each.__struct_config__.tag for each in get_args(AnyReceivedFrame))


class BadFrame(Exception):
    """The server sent what is no frame."""


def decode_received_frame(text: bytes) -> AnyReceivedFrame | None:
    """A frame; None: one of a kind that this client does not know, from a newer server."""
    try:
        return _frame_decoder.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        if _frame_type(text) in _KNOWN_TYPES | {None}:
            raise BadFrame(f"the server sent what is no frame: {error}") from error
        return None


def _frame_type(text: bytes) -> str | None:
    try:
        return _type_decoder.decode(text).type
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def routes_to_wire(routes: tuple[Route, ...]) -> list[dict[str, Any]]:
    """Routes as they are sent."""
    return [
        {
            "where": route.where,
            "priority": route.priority,
            "capacity": route.capacity,
            "capacity_bytes": route.capacity_bytes,
            "name": route.name,
        }
        for route in routes
    ]
