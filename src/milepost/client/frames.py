"""What is said on a WebSocket: frames that the server sends, and those that the client does."""

from typing import Any, Final, TypeAlias

import msgspec

from milepost.client.messages import ReceivedMessage
from milepost.dispatch import Route

Id: TypeAlias = int
"""What a server calls a delivery."""
Ref: TypeAlias = int | str | None


class ReceivedFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Anything that the server sends."""


class Welcome(ReceivedFrame, frozen=True, kw_only=True, tag="welcome"):
    """The answer to a hello."""

    consumer: str
    node: str | None
    standby: bool
    timeout: float
    resume: str
    resume_seconds: float
    resumed: bool
    open: list[Id]


class Standby(ReceivedFrame, frozen=True, kw_only=True, tag="standby"):
    """Whether another process has the subscription, which has changed."""

    standby: bool


class OneDelivery(msgspec.Struct, frozen=True):
    """A message on its way."""

    id: Id
    attempt: int
    route: str
    replay: bool
    message: ReceivedMessage


class Deliveries(ReceivedFrame, frozen=True, kw_only=True, tag="deliveries"):
    """Messages for this consumer."""

    deliveries: list[OneDelivery]


class Because(msgspec.Struct, frozen=True):
    """A delivery that is not this consumer's, and why."""

    id: Id
    reason: str


class Settled(ReceivedFrame, frozen=True, kw_only=True, tag="settled"):
    """The answer to `settle` and `extend`."""

    ref: Ref = None
    moved: list[Id]
    refused: list[Because]


class Lost(ReceivedFrame, frozen=True, kw_only=True, tag="lost"):
    """Deliveries that are no longer this consumer's."""

    deliveries: list[Because]


class Recall(ReceivedFrame, frozen=True, kw_only=True, tag="recall"):
    """Nothing is to run for a moment: what nobody has begun with goes back."""


class Done(ReceivedFrame, frozen=True, kw_only=True, tag="done"):
    """The answer to `configure` and `drain`."""

    ref: Ref = None


class Pong(ReceivedFrame, frozen=True, kw_only=True, tag="pong"):
    """The answer to `ping`."""

    ref: Ref = None


class Trouble(ReceivedFrame, frozen=True, kw_only=True, tag="problem"):
    """A frame had no effect."""

    ref: Ref = None
    problem: msgspec.Raw


class End(ReceivedFrame, frozen=True, kw_only=True, tag="end"):
    """The last frame."""

    reason: str
    detail: str = ""
    to: str | None = None


Received: TypeAlias = Welcome | Standby | Deliveries | Settled | Lost | Recall | Done | Pong | Trouble | End


class _Named(msgspec.Struct, frozen=True):
    type: str


_received: "msgspec.json.Decoder[Received]" = msgspec.json.Decoder(Received)
_named = msgspec.json.Decoder(_Named)
_KNOWN: Final = frozenset(
    {"welcome", "standby", "deliveries", "settled", "lost", "recall", "done", "pong", "problem", "end"}
)


class BadFrame(Exception):
    """The server sent what is no frame."""


def received(text: bytes) -> Received | None:
    """A frame; None: one of a kind that this client does not know, from a newer server."""
    try:
        return _received.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        if _kind(text) in _KNOWN | {None}:
            raise BadFrame(f"the server sent what is no frame: {error}") from error
        return None


def _kind(text: bytes) -> str | None:
    try:
        return _named.decode(text).type
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def routes_sent(routes: tuple[Route, ...]) -> list[dict[str, Any]]:
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
