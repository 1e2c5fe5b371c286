"""The frames that a client sends, checked, and those that the server sends, encoded."""

from collections.abc import Iterator, Sequence
from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from milepost.dispatch import Route
from milepost.dispatch.routing.route import DEFAULT_CAPACITY_BYTES, DEFAULT_CAPACITY_MESSAGES
from milepost.engine.checks import MAX_DURATION_SECONDS
from milepost.server.http.json_body import decode_small
from milepost.server.limits import Limits
from milepost.server.problems import problem_response
from milepost.wire.frames import DeliveryId, FrameRef, ProblemFrame, ServerFrame
from milepost.wire.messages import StreamMessage
from milepost.wire.values import refuse_as_invalid

MAX_FRAME_NUMBER = 2**63 - 1
MAX_CONSUMER_ROUTES = 1000
"""Of a consumer."""
MAX_FILTER_CHARACTERS = 2**17
"""Of all routes of a consumer, together: a compiled filter takes a thousand times as much memory."""
MAX_OPEN_DELIVERIES = 100_000
"""Deliveries that a client says it still has."""
MAX_AVOIDED_ADDRESSES = 100
"""That a client may want to avoid."""

ClientFrameRef: TypeAlias = (
    Annotated[int, Meta(ge=-MAX_FRAME_NUMBER, le=MAX_FRAME_NUMBER)] | Annotated[str, Meta(max_length=100)] | None
)
"""What a client calls a frame: the answer repeats it."""
MAX_DELIVERIES_PER_LIST = 10_000
"""Deliveries that one frame may name in each of its lists."""
FrameSeconds: TypeAlias = Annotated[float, Meta(ge=0, le=MAX_DURATION_SECONDS)]


class RouteOnWire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which messages a consumer takes."""

    where: str | None = None
    """A filter; null takes everything."""
    priority: Annotated[int, Meta(ge=-MAX_FRAME_NUMBER, le=MAX_FRAME_NUMBER)] = 0
    capacity: Annotated[int, Meta(ge=0, le=MAX_FRAME_NUMBER)] = DEFAULT_CAPACITY_MESSAGES
    """How many may be open at a time; 0 pauses."""
    capacity_bytes: Annotated[int, Meta(ge=0, le=MAX_FRAME_NUMBER)] = DEFAULT_CAPACITY_BYTES
    name: str | None = None

    def route(self) -> Route:
        """The same as the library takes it."""
        return Route(
            self.where,
            priority=self.priority,
            capacity=self.capacity,
            capacity_bytes=self.capacity_bytes,
            name=self.name,
        )


RoutesOnWire: TypeAlias = Annotated[list[RouteOnWire], Meta(min_length=1, max_length=MAX_CONSUMER_ROUTES)]


class ClientFrame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """Anything that a client sends."""

    ref: ClientFrameRef = None


class HelloFrame(ClientFrame, frozen=True, tag="hello"):
    """The first frame: who comes, and what for."""

    routes: RoutesOnWire | UnsetType = UNSET
    """Left out: one that takes everything, or those that the consumer had when it is resumed."""
    consumer: Annotated[str, Meta(max_length=100)] | None = None
    """A name for people."""
    resume: str | None = None
    """What an earlier welcome said, of a connection that broke."""
    open: Annotated[list[DeliveryId], Meta(max_length=MAX_OPEN_DELIVERIES)] | None = None
    """With `resume`: what the client still has; null is everything."""
    avoid: Annotated[list[str], Meta(max_length=MAX_AVOIDED_ADDRESSES)] = []
    """Addresses of servers that could not be reached."""


class ConfigureFrame(ClientFrame, frozen=True, tag="configure"):
    """Other routes from now on."""

    routes: RoutesOnWire


class DeliveryToRetry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A delivery that failed."""

    id: DeliveryId
    after: FrameSeconds | None = None
    """Seconds; null is what the subscription's policy says."""
    reason: str = ""
    error: str = ""
    """The whole of it, such as a traceback."""
    count: bool = True
    """Whether it is an attempt."""
    within: FrameSeconds | None = None
    """Seconds. With `count` false: it waits for whoever can read it, and is parked if nobody did by then."""


class DeliveryToGiveUp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A delivery that is given up, and why."""

    id: DeliveryId
    reason: str = ""


class SettleFrame(ClientFrame, frozen=True, tag="settle"):
    """How deliveries end."""

    ack: Annotated[list[DeliveryId], Meta(max_length=MAX_DELIVERIES_PER_LIST)] = []
    retry: Annotated[list[DeliveryToRetry], Meta(max_length=MAX_DELIVERIES_PER_LIST)] = []
    park: Annotated[list[DeliveryToGiveUp], Meta(max_length=MAX_DELIVERIES_PER_LIST)] = []
    skip: Annotated[list[DeliveryToGiveUp], Meta(max_length=MAX_DELIVERIES_PER_LIST)] = []
    back: Annotated[list[DeliveryId], Meta(max_length=MAX_DELIVERIES_PER_LIST)] = []
    """Those that nobody has begun with: they go to others, and were no attempts."""


class ExtendFrame(ClientFrame, frozen=True, tag="extend"):
    """Deliveries that take longer."""

    deliveries: Annotated[list[DeliveryId], Meta(max_length=MAX_DELIVERIES_PER_LIST)]
    seconds: Annotated[float, Meta(gt=0, le=MAX_DURATION_SECONDS)]


class DrainFrame(ClientFrame, frozen=True, tag="drain"):
    """Nothing new; the end comes when what is open is settled."""


class PingFrame(ClientFrame, frozen=True, tag="ping"):
    """To be answered."""


class LeaveFrame(ClientFrame, frozen=True, tag="leave"):
    """A clean end."""


AnyClientFrame: TypeAlias = (
    HelloFrame | ConfigureFrame | SettleFrame | ExtendFrame | DrainFrame | PingFrame | LeaveFrame
)


class _FrameWithRef(msgspec.Struct):
    ref: ClientFrameRef = None


_ref_decoder = msgspec.json.Decoder(_FrameWithRef)


def decode_frame(text: str, limits: Limits) -> AnyClientFrame:
    """A frame; `RequestRefused` or `TooLarge` says what is wrong with one that is none of these."""
    frame: AnyClientFrame = decode_small(text.encode(), AnyClientFrame, limits)
    return frame


def is_json_object(text: str) -> bool:
    """Whether a text is JSON at all, and an object."""
    try:
        _ref_decoder.decode(text)
    except msgspec.ValidationError:
        return text.lstrip().startswith("{")
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return False
    return True


def frame_ref(text: str) -> ClientFrameRef:
    """What a frame that could not be understood is called by its client."""
    try:
        return _ref_decoder.decode(text).ref
    except (msgspec.DecodeError, RecursionError):
        return None


def routes_from_wire(asked: list[RouteOnWire]) -> list[Route]:
    """Routes as the library takes them; `FilterError` and `InvalidMessage` say what is wrong."""
    with refuse_as_invalid("routes"):
        return [each.route() for each in asked]


MAX_DELIVERIES_FRAME_BYTES = 2**20
"""A frame of deliveries ends before it gets larger than this, unless it has only one."""


class FrameDelivery(msgspec.Struct, frozen=True, gc=False):
    """A message on its way."""

    id: DeliveryId
    """To settle it by."""
    attempt: int
    """From 1."""
    route: str
    """The consumer's route that matched: its name, or its filter."""
    replay: bool
    """Whether it had been handled before, and comes again because a person wants that."""
    message: StreamMessage


def problem_frame(error: Exception, ref: FrameRef) -> ProblemFrame:
    """Return the frame that says what an error says."""
    return ProblemFrame(ref=ref, problem=msgspec.Raw(problem_response(error).body))


_encoder = msgspec.json.Encoder()


def encode_frame(frame: ServerFrame) -> str:
    """A frame as it is sent."""
    return _encoder.encode(frame).decode()


def encode_deliveries(deliveries: Sequence[FrameDelivery]) -> Iterator[str]:
    """Deliveries as frames of a bounded size."""
    pieces: list[bytes] = []
    size = 0
    for delivery in deliveries:
        piece = _encoder.encode(delivery)
        if pieces and size + len(piece) > MAX_DELIVERIES_FRAME_BYTES:
            yield _deliveries_frame(pieces)
            pieces, size = [], 0
        pieces.append(piece)
        size += len(piece)
    if pieces:
        yield _deliveries_frame(pieces)


def _deliveries_frame(pieces: list[bytes]) -> str:
    return (b'{"type":"deliveries","deliveries":[' + b",".join(pieces) + b"]}").decode()
