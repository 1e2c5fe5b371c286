"""Frames that a client sends."""

from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from milepost.dispatch import Route
from milepost.dispatch.route import CAPACITY, CAPACITY_BYTES
from milepost.engine.values import LONGEST
from milepost.server.http.request import decoded
from milepost.server.limits import Limits
from milepost.server.wire.values import checked

LARGEST = 2**63 - 1
MOST_ROUTES = 1000
"""Of a consumer."""
MAX_FILTER_CHARACTERS = 2**17
"""Of all routes of a consumer, together: a compiled filter takes a thousand times as much memory."""
MOST_OPEN = 100_000
"""Deliveries that a client says it still has."""
MOST_ADDRESSES = 100
"""That a client may want to avoid."""

Ref: TypeAlias = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)] | Annotated[str, Meta(max_length=100)] | None
"""What a client calls a frame: the answer repeats it."""
Id: TypeAlias = int
MOST = 10_000
"""Deliveries that one frame may name in each of its lists."""
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=LONGEST)]


class AskedRoute(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which messages a consumer takes."""

    where: str | None = None
    """A filter; null takes everything."""
    priority: Annotated[int, Meta(ge=-LARGEST, le=LARGEST)] = 0
    capacity: Annotated[int, Meta(ge=0, le=LARGEST)] = CAPACITY
    """How many may be open at a time; 0 pauses."""
    capacity_bytes: Annotated[int, Meta(ge=0, le=LARGEST)] = CAPACITY_BYTES
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


Routes: TypeAlias = Annotated[list[AskedRoute], Meta(min_length=1, max_length=MOST_ROUTES)]


class Frame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """Anything that a client sends."""

    ref: Ref = None


class Hello(Frame, frozen=True, tag="hello"):
    """The first frame: who comes, and what for."""

    routes: Routes | UnsetType = UNSET
    """Left out: one that takes everything, or those that the consumer had when it is resumed."""
    consumer: Annotated[str, Meta(max_length=100)] | None = None
    """A name for people."""
    resume: str | None = None
    """What an earlier welcome said, of a connection that broke."""
    open: Annotated[list[Id], Meta(max_length=MOST_OPEN)] | None = None
    """With `resume`: what the client still has; null is everything."""
    avoid: Annotated[list[str], Meta(max_length=MOST_ADDRESSES)] = []
    """Addresses of servers that could not be reached."""


class Configure(Frame, frozen=True, tag="configure"):
    """Other routes from now on."""

    routes: Routes


class Retry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A delivery that failed."""

    id: Id
    after: Seconds | None = None
    """Seconds; null is what the subscription's policy says."""
    reason: str = ""
    error: str = ""
    """The whole of it, such as a traceback."""
    count: bool = True
    """Whether it is an attempt."""
    within: Seconds | None = None
    """Seconds. With `count` false: it waits for whoever can read it, and is parked if nobody did by then."""


class Given(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A delivery that is given up, and why."""

    id: Id
    reason: str = ""


class Settle(Frame, frozen=True, tag="settle"):
    """How deliveries end."""

    ack: Annotated[list[Id], Meta(max_length=MOST)] = []
    retry: Annotated[list[Retry], Meta(max_length=MOST)] = []
    park: Annotated[list[Given], Meta(max_length=MOST)] = []
    skip: Annotated[list[Given], Meta(max_length=MOST)] = []
    back: Annotated[list[Id], Meta(max_length=MOST)] = []
    """Those that nobody has begun with: they go to others, and were no attempts."""


class Extend(Frame, frozen=True, tag="extend"):
    """Deliveries that take longer."""

    deliveries: Annotated[list[Id], Meta(max_length=MOST)]
    seconds: Annotated[float, Meta(gt=0, le=LONGEST)]


class Drain(Frame, frozen=True, tag="drain"):
    """Nothing new; the end comes when what is open is settled."""


class Ping(Frame, frozen=True, tag="ping"):
    """To be answered."""


class Leave(Frame, frozen=True, tag="leave"):
    """A clean end."""


Incoming: TypeAlias = Hello | Configure | Settle | Extend | Drain | Ping | Leave


class _Referring(msgspec.Struct):
    ref: Ref = None


_referring = msgspec.json.Decoder(_Referring)


def frame_of(text: str, limits: Limits) -> Incoming:
    """A frame; `Refused` or `TooLarge` says what is wrong with one that is none of these."""
    frame: Incoming = decoded(text.encode(), Incoming, limits)
    return frame


def is_object(text: str) -> bool:
    """Whether a text is JSON at all, and an object."""
    try:
        _referring.decode(text)
    except msgspec.ValidationError:
        return text.lstrip().startswith("{")
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return False
    return True


def ref_of(text: str) -> Ref:
    """What a frame that could not be understood is called by its client."""
    try:
        return _referring.decode(text).ref
    except (msgspec.DecodeError, RecursionError):
        return None


def routes_of(asked: list[AskedRoute]) -> list[Route]:
    """Routes as the library takes them; `FilterError` and `InvalidMessage` say what is wrong."""
    with checked("routes"):
        return [each.route() for each in asked]
