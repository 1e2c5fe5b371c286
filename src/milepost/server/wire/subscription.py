"""Subscriptions as they are asked for."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from milepost.dispatch.retry import Retry
from milepost.dispatch.routes import STRATEGIES
from milepost.engine.checkpoint import Checkpoint
from milepost.engine.consuming.created import IfExists
from milepost.engine.info import SubscriptionInfo
from milepost.engine.order import by_correlation, by_property
from milepost.engine.values import LONGEST
from milepost.filter.filter import MAX_BYTES
from milepost.log.selection import MAX_CHOICES
from milepost.server.wire.place import Place, place_of
from milepost.server.wire.values import Duration, PropertyName, Text, Wait, Whole, described, given

Names = Text | Annotated[list[Text], described(maxItems=MAX_CHOICES)]


class OrderByProperty(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages with the same value of this property are handled one after the other."""

    property: PropertyName


OrderedBy = Literal["stream", "correlation"] | OrderByProperty | None


class RetryPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What follows a failed attempt."""

    attempts: Whole = Retry.attempts
    """How many there are before the message is parked, the first included."""
    delay: Wait = Retry.delay
    """Seconds before the second attempt."""
    factor: Annotated[float, described(minimum=1, maximum=1_000_000)] = Retry.factor
    """How much longer each following wait is."""
    max_delay: Wait = Retry.max_delay
    """The longest wait, in seconds, before jitter."""
    jitter: Annotated[float, described(minimum=0, maximum=1)] = Retry.jitter
    """The share by which a wait is longer or shorter at random."""


class CheckpointPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When progress is written: whichever comes first."""

    seconds: Wait = Checkpoint.seconds
    """So long after the first message that is not written yet."""
    messages: Whole = Checkpoint.messages
    """After so many."""


class SubscriptionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a subscription for consumers. What is left out keeps its default, or stays as it is."""

    category: Names | UnsetType | None = UNSET
    """One category, or any of several. None of category, stream and types: everything."""
    stream: Names | UnsetType | None = UNSET
    """One stream, or any of several."""
    types: Names | UnsetType | None = UNSET
    """One type, or any of several; `*` is one dotted part and `>` is the rest."""
    where: Annotated[str, described(maxLength=MAX_BYTES)] | UnsetType | None = UNSET
    """A filter over the messages' properties."""
    ordered_by: OrderedBy | UnsetType = UNSET
    """Which messages are handled one after the other. Defaults to null: any at any time."""
    strategy: Annotated[str, described(enum=STRATEGIES)] | UnsetType = UNSET
    """How consumers of equal filter and priority share: `round_robin` (the default), `dispatch_to_single`,
    `pinned`, `pinned_by_correlation`."""
    tracking: Literal["failures", "all"] | UnsetType = UNSET
    """`failures` (the default) stores what needs attention; `all` every message, for pulling."""
    on_park: Literal["block", "continue"] | UnsetType = UNSET
    """Whether a parked message holds back those of its key. Defaults to `continue`."""
    timeout: Duration | UnsetType = UNSET
    """Seconds for a delivery, which then counts as failed. Defaults to 30."""
    retry: RetryPolicy | UnsetType = UNSET
    checkpoint: CheckpointPolicy | UnsetType = UNSET
    window: Whole | UnsetType = UNSET
    """How many messages may be open or read ahead. Defaults to 1,000."""
    lease: Annotated[float, described(minimum=1, maximum=LONGEST)] | UnsetType = UNSET
    """Seconds after which a server that gave no sign of life is replaced. Defaults to 30."""
    stall_after: Whole | UnsetType = UNSET
    """How many failures in a row, or messages retrying, stop it until one succeeds. Defaults to 1,000."""
    max_waiting: Whole | UnsetType = UNSET
    """How many messages may wait behind others before it reads no further. Defaults to 100,000."""
    max_consumers: Whole | UnsetType | None = UNSET
    """How many may be served at a time. Defaults to null: as many as come."""
    max_unrouted: Whole | UnsetType = UNSET
    """How many messages that nobody wants may be set aside before it reads no further. Defaults to 100,000."""
    keep_done: Duration | UnsetType | None = UNSET
    """For how many seconds stored messages that are done are kept. Defaults to null: not at all."""

    def options(self) -> dict[str, Any]:
        """Those that were given, as the library takes them."""
        chosen = {name: value for name, value in _fields(self).items() if value is not UNSET}
        converted = {name: make(chosen[name]) for name, make in _CONVERSIONS.items() if name in chosen}
        return {**chosen, **converted}


class SubscriptionToCreate(SubscriptionSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A subscription for consumers, or for pulling with `tracking` `all`."""

    name: Text
    """Its name."""
    group: Text | UnsetType = UNSET
    """Its group. Defaults to the server's own."""
    start: Place | UnsetType = UNSET
    """Where it begins: `beginning` (the default), `now`, a time, or after a position."""
    paused: bool | UnsetType = UNSET
    """Whether it waits until somebody resumes it, if it is new. Defaults to false."""
    if_exists: IfExists = "update"
    """`update` changes its settings to these, `error` refuses, `ignore` leaves it as it is."""


class SubscriptionChanges(SubscriptionSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings to change; the others stay. Of one that a program declares only `concurrency` can be set."""

    concurrency: Whole | UnsetType | None = UNSET
    """How many messages a process handles at once; null is what its program says."""
    start: Place | UnsetType = UNSET
    """Refused, with a word on what to do: it has begun already. Move it instead."""
    paused: bool | UnsetType = UNSET
    """Refused, with a word on what to do: it is there already. Pause it or resume it instead."""


class Subscriptions(msgspec.Struct, frozen=True):
    """Subscriptions by address."""

    subscriptions: list[SubscriptionInfo]


def _fields(settings: SubscriptionSettings) -> Mapping[str, Any]:
    return {
        name: getattr(settings, name)
        for name in settings.__struct_fields__
        if name not in ("name", "group", "if_exists")
    }


def _order(value: OrderedBy) -> Any:
    if isinstance(value, OrderByProperty):
        return given("ordered_by", lambda: by_property(value.property))
    return by_correlation if value == "correlation" else value


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "ordered_by": _order,
    "retry": lambda value: given("retry", lambda: Retry(**msgspec.structs.asdict(value))),
    "checkpoint": lambda value: given("checkpoint", lambda: Checkpoint(**msgspec.structs.asdict(value))),
    "start": lambda value: place_of("start", value),
}
