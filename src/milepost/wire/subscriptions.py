"""Subscriptions on the wire: their settings, how they are created and changed, moves and replays."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from milepost.dispatch.retry import Retry
from milepost.dispatch.routing.routes import STRATEGIES
from milepost.engine.checks import MAX_DURATION_SECONDS
from milepost.engine.declare.consumer_options import IfExists
from milepost.engine.declare.declaration import Checkpoint
from milepost.engine.declare.order import by_correlation, by_property
from milepost.engine.operate.info import SubscriptionInfo
from milepost.filter.filter import MAX_BYTES
from milepost.log.query import MAX_CHOICES
from milepost.progress.reports import Node
from milepost.wire.values import (
    DurationSeconds,
    EndPlace,
    NonEmptyText,
    Place,
    PositiveCount,
    PropertyName,
    WaitSeconds,
    convert_given,
    parse_place,
    schema_words,
)

OneOrSeveralNames = NonEmptyText | Annotated[list[NonEmptyText], schema_words(maxItems=MAX_CHOICES)]


class OrderByProperty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages with the same value of this property are handled one after the other."""

    property: PropertyName


OrderOnWire = Literal["stream", "correlation"] | OrderByProperty | None


class RetryPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What follows a failed attempt."""

    attempts: PositiveCount = Retry.attempts
    """How many there are before the message is parked, the first included."""
    delay: WaitSeconds = Retry.delay
    """Seconds before the second attempt."""
    factor: Annotated[float, schema_words(minimum=1, maximum=1_000_000)] = Retry.factor
    """How much longer each following wait is."""
    max_delay: WaitSeconds = Retry.max_delay
    """The longest wait, in seconds, before jitter."""
    jitter: Annotated[float, schema_words(minimum=0, maximum=1)] = Retry.jitter
    """The share by which a wait is longer or shorter at random."""


class CheckpointPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When progress is written: whichever comes first."""

    seconds: WaitSeconds = Checkpoint.seconds
    """So long after the first message that is not written yet."""
    messages: PositiveCount = Checkpoint.messages
    """After so many."""


class SubscriptionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a subscription for consumers. What is left out keeps its default, or stays as it is."""

    category: OneOrSeveralNames | UnsetType | None = UNSET
    """One category, or any of several. None of category, stream and types: everything."""
    stream: OneOrSeveralNames | UnsetType | None = UNSET
    """One stream, or any of several."""
    types: OneOrSeveralNames | UnsetType | None = UNSET
    """One type, or any of several; `*` is one dotted part and `>` is the rest."""
    where: Annotated[str, schema_words(maxLength=MAX_BYTES)] | UnsetType | None = UNSET
    """A filter over the messages' properties."""
    ordered_by: OrderOnWire | UnsetType = UNSET
    """Which messages are handled one after the other. Defaults to null: any at any time."""
    strategy: Annotated[str, schema_words(enum=STRATEGIES)] | UnsetType = UNSET
    """How consumers of equal filter and priority share: `round_robin` (the default), `dispatch_to_single`,
    `pinned`, `pinned_by_correlation`."""
    tracking: Literal["failures", "all"] | UnsetType = UNSET
    """`failures` (the default) stores what needs attention; `all` every message, for pulling."""
    on_park: Literal["block", "continue"] | UnsetType = UNSET
    """Whether a parked message holds back those of its key. Defaults to `continue`."""
    timeout: DurationSeconds | UnsetType = UNSET
    """Seconds for a delivery, which then counts as failed. Defaults to 30."""
    retry: RetryPolicy | UnsetType = UNSET
    checkpoint: CheckpointPolicy | UnsetType = UNSET
    window: PositiveCount | UnsetType = UNSET
    """How many messages may be open or read ahead. Defaults to 1,000."""
    lease: Annotated[float, schema_words(minimum=1, maximum=MAX_DURATION_SECONDS)] | UnsetType = UNSET
    """Seconds after which a server that gave no sign of life is replaced. Defaults to 30."""
    stall_after: PositiveCount | UnsetType = UNSET
    """How many failures in a row, or messages retrying, stop it until one succeeds. Defaults to 1,000."""
    max_waiting: PositiveCount | UnsetType = UNSET
    """How many messages may wait behind others before it reads no further. Defaults to 100,000."""
    max_consumers: PositiveCount | UnsetType | None = UNSET
    """How many may be served at a time. Defaults to null: as many as come."""
    max_unrouted: PositiveCount | UnsetType = UNSET
    """How many messages that nobody wants may be set aside before it reads no further. Defaults to 100,000."""
    keep_done: DurationSeconds | UnsetType | None = UNSET
    """For how many seconds stored messages that are done are kept. Defaults to null: not at all."""

    def options(self) -> dict[str, Any]:
        """Those that were given, as the library takes them."""
        chosen = {name: value for name, value in _settings_fields(self).items() if value is not UNSET}
        converted = {name: make(chosen[name]) for name, make in _CONVERSIONS.items() if name in chosen}
        return {**chosen, **converted}


class SubscriptionToCreate(SubscriptionSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A subscription for consumers, or for pulling with `tracking` `all`."""

    name: NonEmptyText
    """Its name."""
    group: NonEmptyText | UnsetType = UNSET
    """Its group. Defaults to the server's own."""
    start: Place | UnsetType = UNSET
    """Where it begins: `beginning` (the default), `now`, a time, or after a position."""
    paused: bool | UnsetType = UNSET
    """Whether it waits until somebody resumes it, if it is new. Defaults to false."""
    if_exists: IfExists = "update"
    """`update` changes its settings to these, `error` refuses, `ignore` leaves it as it is."""


class SubscriptionChanges(SubscriptionSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings to change; the others stay. Of one that a program declares only `concurrency` can be set."""

    concurrency: PositiveCount | UnsetType | None = UNSET
    """How many messages a process handles at once; null is what its program says."""
    start: Place | UnsetType = UNSET
    """Refused, with a word on what to do: it has begun already. Move it instead."""
    paused: bool | UnsetType = UNSET
    """Refused, with a word on what to do: it is there already. Pause it or resume it instead."""


class Subscriptions(msgspec.Struct, frozen=True):
    """Subscriptions by address."""

    subscriptions: list[SubscriptionInfo]


class Nodes(msgspec.Struct, frozen=True):
    """Servers, the first that came first."""

    nodes: list[Node]


def _settings_fields(settings: SubscriptionSettings) -> Mapping[str, Any]:
    return {
        name: getattr(settings, name)
        for name in settings.__struct_fields__
        if name not in ("name", "group", "if_exists")
    }


def _convert_order(value: OrderOnWire) -> Any:
    if isinstance(value, OrderByProperty):
        return convert_given("ordered_by", lambda: by_property(value.property))
    return by_correlation if value == "correlation" else value


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "ordered_by": _convert_order,
    "retry": lambda value: convert_given("retry", lambda: Retry(**msgspec.structs.asdict(value))),
    "checkpoint": lambda value: convert_given("checkpoint", lambda: Checkpoint(**msgspec.structs.asdict(value))),
    "start": lambda value: parse_place("start", value),
}


class Move(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a subscription is to go on."""

    to: Place
    """`beginning`, `now`, a time in RFC 3339 (messages at or after it), or a position (messages after it)."""


class Moved(msgspec.Struct, frozen=True):
    """What came of a move."""

    forgotten: int
    """How many deliveries were forgotten: their messages come again, or never."""


class Replay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be repeated."""

    start: Place
    """`beginning`, a time, or a position: messages after it."""
    end: EndPlace | None = None
    """The last position, or a time. Defaults to all that was handled."""


class Replayed(msgspec.Struct, frozen=True):
    """What came of a replay."""

    again: int
    """How many positions come again."""
