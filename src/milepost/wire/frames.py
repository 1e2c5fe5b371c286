"""The WebSocket protocol: its name, the frames that a server sends, and why a connection ends."""

from typing import Final, TypeAlias

import msgspec

SUBPROTOCOL: Final = "milepost.v1"

GOING_AWAY_REASON: Final = "going away"
"""The server stops; `to` is another one, if there is."""
ACCESS_REASON: Final = "access"
"""The token was revoked, or has expired."""
BAD_FRAME_REASON: Final = "bad frame"
"""What the client sent is no frame, or it sent too many that could not be."""
TOO_SLOW_REASON: Final = "too slow"
"""The client did not read: it is cut off, since it would not read this either."""
MOVED_REASON: Final = "moved"
"""Another server has the subscription: `to` is its address."""
REFUSED_REASON: Final = "refused"
"""The hello cannot be: the problem before it says why."""
RESUMED_REASON: Final = "resumed"
"""Another connection goes on with the consumer of this one."""

DeliveryId: TypeAlias = int
"""What a server calls a delivery."""
FrameRef: TypeAlias = int | str | None
"""What a client calls a frame: the answer repeats it."""


class ServerFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Anything that the server sends."""


class WelcomeFrame(ServerFrame, frozen=True, kw_only=True, tag="welcome"):
    """The answer to a hello."""

    consumer: str
    """The name of the consumer."""
    node: str | None
    """The address of this server, if it has said one."""
    standby: bool
    """Whether another process has the subscription: this one takes over when that leaves."""
    timeout: float
    """Seconds for a delivery."""
    resume: str
    """What to say in the next hello if the connection breaks."""
    resume_seconds: float
    """For how long that helps."""
    resumed: bool
    open: list[DeliveryId]
    """When resumed: what is still this consumer's."""


class StandbyFrame(ServerFrame, frozen=True, kw_only=True, tag="standby"):
    """Whether another process has the subscription, which has changed."""

    standby: bool


class RefusedDelivery(msgspec.Struct, frozen=True):
    """A delivery that is not the client's, and why."""

    id: DeliveryId
    reason: str


class SettledFrame(ServerFrame, frozen=True, kw_only=True, tag="settled"):
    """The answer to `settle` and `extend`."""

    ref: FrameRef = None
    moved: list[DeliveryId]
    refused: list[RefusedDelivery]


class LostFrame(ServerFrame, frozen=True, kw_only=True, tag="lost"):
    """Deliveries that are no longer the client's."""

    deliveries: list[RefusedDelivery]


class RecallFrame(ServerFrame, frozen=True, kw_only=True, tag="recall"):
    """Nothing is to run for a moment: the client gives back what nobody has begun with."""


class DoneFrame(ServerFrame, frozen=True, kw_only=True, tag="done"):
    """The answer to `configure` and `drain`."""

    ref: FrameRef = None


class PongFrame(ServerFrame, frozen=True, kw_only=True, tag="pong"):
    """The answer to `ping`."""

    ref: FrameRef = None


class ProblemFrame(ServerFrame, frozen=True, kw_only=True, tag="problem"):
    """A frame had no effect."""

    ref: FrameRef = None
    problem: msgspec.Raw
    """As HTTP answers: RFC 9457."""


class EndFrame(ServerFrame, frozen=True, kw_only=True, tag="end"):
    """The last frame."""

    reason: str
    detail: str = ""
    to: str | None = None
