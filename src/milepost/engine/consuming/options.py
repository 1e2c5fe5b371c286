"""A subscription that is created for consumers: every option, checked, and as it is stored."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final

from milepost.dispatch import Retry, Settings
from milepost.dispatch.routes import STRATEGIES
from milepost.engine.checkpoint import Checkpoint
from milepost.engine.declaration import OPTIONS, Declaration
from milepost.engine.order import UNRELATED, ByFunction, order_named
from milepost.engine.query import query_of
from milepost.engine.values import MOST, Check, checked, one_of, optional, whole
from milepost.log.reader import Query
from milepost.log.since import Since
from milepost.suggestions import suggestion

DEFAULTS: Final[Mapping[str, Any]] = {"ordered_by": None, "on_park": "continue"}
"""Where a subscription for consumers begins otherwise than one with handlers: consumers compete."""

_NOT_HERE = ("lanes", "batch", "concurrency", "isolation", "renamed_from")
_OWN: dict[str, Check[Any]] = {
    "strategy": one_of(*STRATEGIES),
    "max_consumers": optional(whole(1, MOST)),
    "max_unrouted": whole(1, MOST),
}
_OPTIONS = (*(option for option in OPTIONS if option not in _NOT_HERE), *_OWN)


@dataclass(frozen=True, kw_only=True)
class Created:
    """What a subscription was created with. `Created.of` makes one from the options that a user wrote.

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
    def of(cls, name: str, options: Mapping[str, Any]) -> "Created":
        """Checks a name and the options that were given for it."""
        for option in options:
            if option in _NOT_HERE:
                raise TypeError(f"subscription {name!r}: {option} is for subscriptions with handlers")
            if option not in _OPTIONS:
                raise TypeError(f"subscription {name!r} has no option {option!r}{suggestion(option, _OPTIONS)}")
        own = {
            option: checked(f"subscription {name!r}: {option}", _OWN[option], value)
            for option, value in options.items()
            if option in _OWN
        }
        others = {option: value for option, value in options.items() if option not in _OWN}
        declaration = replace(Declaration.of(name, {**DEFAULTS, **others}), lanes=1)
        if isinstance(declaration.ordered_by, ByFunction):
            problem = "a function cannot be stored: use by_property"
            raise ValueError(f"subscription {name!r}: ordered_by: {problem}")  # noqa: TRY004 - as with every option
        if declaration.retry.rules:
            raise ValueError(f"subscription {name!r}: retry: rules for exceptions are for handlers")
        return cls(declaration=declaration, **own)

    @classmethod
    def from_stored(cls, name: str, stored: Mapping[str, Any]) -> "Created":
        """As it was created."""
        values = dict(stored)
        # `start` and `paused` are for a new one, and `paused` is not stored: its status says that.
        values.pop("start", None)
        values["retry"] = Retry(**stored["retry"])
        values["checkpoint"] = Checkpoint(**stored["checkpoint"])
        values["ordered_by"] = order_named(stored["ordered_by"] or "none", UNRELATED)
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
            "ordered_by": None if declared.ordered_by == UNRELATED else declared.orders,
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
        return {name: _as(order[name], stored[name]) for name in order if name in stored}

    def ordered_as(self, other: "Created") -> "Created":
        """The same in another's order."""
        return replace(self, declaration=replace(self.declaration, ordered_by=other.declaration.ordered_by))

    def changed(self, changes: Mapping[str, Any]) -> "Created":
        """With other options; those that are not given stay."""
        return self.of(self.declaration.name, {**self._options(), **changes})

    def _options(self) -> dict[str, Any]:
        return {
            **{name: getattr(self.declaration, name) for name in self.stored() if name not in _OWN},
            **{name: getattr(self, name) for name in _OWN},
        }

    def dispatch_settings(self) -> Settings:
        """What this means to its lane."""
        settings = self.declaration.dispatch_settings(self.declaration.ordered_by)
        return replace(settings, timeout=self.declaration.timeout, max_unrouted=self.max_unrouted)

    def query(self, since: Since | None) -> Query:
        """What of the log it wants."""
        return query_of(self.declaration.selection(), self.declaration.where, since=since)


def _as(order: Any, value: Any) -> Any:
    return {part: value[part] for part in order if part in value} if isinstance(value, dict) else value
