"""The options of a subscription for consumers: checked, changed, stored, and read back."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal

from milepost.dispatch import Retry, Settings
from milepost.dispatch.routing.routes import STRATEGIES
from milepost.engine.checks import MAX_COUNTABLE_NUMBER, Check, checked, one_of, optional, whole
from milepost.engine.declare.declaration import SUBSCRIPTION_OPTIONS, Checkpoint, Declaration
from milepost.engine.declare.order import NO_ORDER, ByFunction, order_from_text
from milepost.engine.query import query_of
from milepost.log.query import Query, Since
from milepost.names import suggestion

IfExists = Literal["update", "error", "ignore"]
"""What `create_subscription` does with a subscription that is there already."""
PAUSED_IS_FOR_NEW = "paused: that is for a new one; this one is there: pause it or resume it"
"""What an update of `paused` is answered."""

DEFAULTS: Final[Mapping[str, Any]] = {"ordered_by": None, "on_park": "continue"}
"""Where a subscription for consumers begins otherwise than one with handlers: consumers compete."""

_HANDLER_ONLY_OPTIONS = ("lanes", "batch", "concurrency", "isolation", "renamed_from")
_OWN_CHECKS: dict[str, Check[Any]] = {
    "strategy": one_of(*STRATEGIES),
    "max_consumers": optional(whole(1, MAX_COUNTABLE_NUMBER)),
    "max_unrouted": whole(1, MAX_COUNTABLE_NUMBER),
}
_ALL_OPTIONS = (*(option for option in SUBSCRIPTION_OPTIONS if option not in _HANDLER_ONLY_OPTIONS), *_OWN_CHECKS)


@dataclass(frozen=True, kw_only=True)
class ConsumerSubscriptionOptions:
    """What a subscription was created with. `ConsumerSubscriptionOptions.of` makes one from the options that a
    user wrote.

    It has the options of `Declaration` but `lanes`, `batch`, `concurrency` and `renamed_from`, with
    `ordered_by=None` and `on_park="continue"` by default, and besides:
    `strategy`: how consumers of equal filter and priority share: "round_robin" (the default),
    "dispatch_to_single", "pinned", "pinned_by_correlation".
    `max_consumers`: how many may be served at a time; those that stand by in other processes do not count, nor are
    they more than that in any. Defaults to None: as many as come.
    `max_unrouted`: how many messages that nobody wants may be set aside before it reads no further. Defaults to
    100,000.
    """

    declaration: Declaration
    strategy: str = "round_robin"
    max_consumers: int | None = None
    max_unrouted: int = 100_000

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any]) -> "ConsumerSubscriptionOptions":
        """Checks a name and the options that were given for it."""
        for option in options:
            if option in _HANDLER_ONLY_OPTIONS:
                raise TypeError(f"subscription {name!r}: {option} is for subscriptions with handlers")
            if option not in _ALL_OPTIONS:
                raise TypeError(
                    f"subscription {name!r} has no option {option!r}{suggestion(option, _ALL_OPTIONS)}"
                )
        own = {
            option: checked(f"subscription {name!r}: {option}", _OWN_CHECKS[option], value)
            for option, value in options.items()
            if option in _OWN_CHECKS
        }
        others = {option: value for option, value in options.items() if option not in _OWN_CHECKS}
        declaration = replace(Declaration.of(name, {**DEFAULTS, **others}), lanes=1)
        if isinstance(declaration.ordered_by, ByFunction):
            problem = "a function cannot be stored: use by_property"
            raise ValueError(f"subscription {name!r}: ordered_by: {problem}")  # noqa: TRY004 - as with every option
        if declaration.retry.rules:
            raise ValueError(f"subscription {name!r}: retry: rules for exceptions are for handlers")
        return cls(declaration=declaration, **own)

    @classmethod
    def from_stored(cls, name: str, stored: Mapping[str, Any]) -> "ConsumerSubscriptionOptions":
        """As it was created."""
        values = dict(stored)
        # `start` and `paused` are for a new one, and `paused` is not stored: its status says that.
        values.pop("start", None)
        values["retry"] = Retry(**stored["retry"])
        values["checkpoint"] = Checkpoint(**stored["checkpoint"])
        values["ordered_by"] = order_from_text(stored["ordered_by"] or "none", NO_ORDER)
        return cls.of(name, values)

    def stored(self) -> dict[str, Any]:
        """All settings, by their names."""
        declared = self.declaration
        retry = asdict(declared.retry)
        del retry["rules"]
        start = declared.start
        return {
            "category": declared.category,
            "stream": declared.stream,
            "types": declared.types,
            "where": None if declared.where is None else declared.where.text,
            "start": start.isoformat() if isinstance(start, datetime) else start,
            "ordered_by": None if declared.ordered_by == NO_ORDER else declared.orders,
            "window": declared.window,
            "retry": retry,
            "on_park": declared.on_park,
            "tracking": declared.tracking,
            "timeout": declared.timeout,
            "checkpoint": asdict(declared.checkpoint),
            "lease": declared.lease,
            "stall_after": declared.stall_after,
            "max_waiting": declared.max_waiting,
            "keep_done": declared.keep_done,
            "strategy": self.strategy,
            "max_consumers": self.max_consumers,
            "max_unrouted": self.max_unrouted,
        }

    @classmethod
    def shown(cls, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Stored settings in the order in which they are documented."""
        order = cls.of("any", {}).stored()
        return {name: _in_order_of(order[name], stored[name]) for name in order if name in stored}

    def ordered_as(self, other: "ConsumerSubscriptionOptions") -> "ConsumerSubscriptionOptions":
        """The same in another's order."""
        return replace(self, declaration=replace(self.declaration, ordered_by=other.declaration.ordered_by))

    def changed(self, changes: Mapping[str, Any]) -> "ConsumerSubscriptionOptions":
        """With other options; those that are not given stay."""
        return self.of(self.declaration.name, {**self._options(), **changes})

    def _options(self) -> dict[str, Any]:
        return {
            **{name: getattr(self.declaration, name) for name in self.stored() if name not in _OWN_CHECKS},
            **{name: getattr(self, name) for name in _OWN_CHECKS},
        }

    def dispatch_settings(self) -> Settings:
        """What this means to its lane."""
        settings = self.declaration.dispatch_settings(self.declaration.ordered_by)
        return replace(settings, timeout=self.declaration.timeout, max_unrouted=self.max_unrouted)

    def query(self, since: Since | None) -> Query:
        """What of the log it wants."""
        return query_of(self.declaration.selection(), self.declaration.where, since=since)


def check_if_exists(value: str) -> None:
    """Raise a `ValueError` unless it is one of `IfExists`."""
    if value not in ("update", "error", "ignore"):
        raise ValueError(f'if_exists: "update", "error" or "ignore" is wanted, not {value!r}')


def check_changes(changes: Mapping[str, Any]) -> None:
    """Raise a `ValueError` for what an update cannot change."""
    if not changes:
        raise ValueError("nothing to update: name an option and its new value")
    if "start" in changes:
        raise ValueError("start: it has begun already; move it instead, to any place that start can name")
    if "paused" in changes:
        raise ValueError(PAUSED_IS_FOR_NEW)


def _in_order_of(order: Any, value: Any) -> Any:
    return {part: value[part] for part in order if part in value} if isinstance(value, dict) else value
