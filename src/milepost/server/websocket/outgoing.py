"""Frames that the server sends."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from milepost.server.problems import answer_to
from milepost.server.websocket.incoming import Id, Ref
from milepost.server.wire.message import StreamMessage

FRAME_BYTES = 2**20
"""A frame of deliveries ends before it gets larger than this, unless it has only one."""


class Outgoing(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Anything that the server sends."""


class Welcome(Outgoing, frozen=True, tag="welcome"):
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
    open: list[Id]
    """When resumed: what is still this consumer's."""


class Standby(Outgoing, frozen=True, tag="standby"):
    """Whether another process has the subscription, which has changed."""

    standby: bool


class OneDelivery(msgspec.Struct, frozen=True, gc=False):
    """A message on its way."""

    id: Id
    """To settle it by."""
    attempt: int
    """From 1."""
    route: str
    """The consumer's route that matched: its name, or its filter."""
    replay: bool
    """Whether it had been handled before, and comes again because a person wants that."""
    message: StreamMessage


class Because(msgspec.Struct, frozen=True):
    """A delivery that is not the client's, and why."""

    id: Id
    reason: str


class Settled(Outgoing, frozen=True, tag="settled"):
    """The answer to `settle` and `extend`."""

    ref: Ref
    moved: list[Id]
    refused: list[Because]


class Lost(Outgoing, frozen=True, tag="lost"):
    """Deliveries that are no longer the client's."""

    deliveries: list[Because]


class Recall(Outgoing, frozen=True, tag="recall"):
    """Nothing is to run for a moment: the client gives back what nobody has begun with."""


class Done(Outgoing, frozen=True, tag="done"):
    """The answer to `configure` and `drain`."""

    ref: Ref


class Pong(Outgoing, frozen=True, tag="pong"):
    """The answer to `ping`."""

    ref: Ref


class Trouble(Outgoing, frozen=True, tag="problem"):
    """A frame had no effect."""

    ref: Ref
    problem: Any
    """As HTTP answers: RFC 9457."""

    @classmethod
    def of(cls, error: Exception, ref: Ref) -> "Trouble":
        """What an error says."""
        return cls(ref=ref, problem=msgspec.Raw(answer_to(error).body))


class End(Outgoing, frozen=True, tag="end"):
    """The last frame."""

    reason: str
    detail: str
    to: str | None


_encoder = msgspec.json.Encoder()


def text_of(frame: Outgoing) -> str:
    """A frame as it is sent."""
    return _encoder.encode(frame).decode()


def frames_of(deliveries: Sequence[OneDelivery]) -> Iterator[str]:
    """Deliveries as frames of a bounded size."""
    pieces: list[bytes] = []
    size = 0
    for delivery in deliveries:
        piece = _encoder.encode(delivery)
        if pieces and size + len(piece) > FRAME_BYTES:
            yield _frame(pieces)
            pieces, size = [], 0
        pieces.append(piece)
        size += len(piece)
    if pieces:
        yield _frame(pieces)


def _frame(pieces: list[bytes]) -> str:
    return (b'{"type":"deliveries","deliveries":[' + b",".join(pieces) + b"]}").decode()
