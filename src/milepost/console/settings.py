"""The settings that a person may change, as fields of a form."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from milepost.dispatch.routes import STRATEGIES
from milepost.errors import InvalidMessage
from milepost.server.wire.subscription import SubscriptionChanges, SubscriptionToCreate

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Field:
    """One setting."""

    name: str
    label: str
    hint: str
    read: Callable[[str], Any]
    """A value from what was typed; ValueError if it is none."""
    choices: Sequence[str] = ()
    part: str | None = None
    """The name within a setting that has several parts."""
    unit: str = ""

    @property
    def id(self) -> str:
        """Its name in a form."""
        return f"{self.name}.{self.part}" if self.part else self.name

    def told(self, settings: Settings) -> str:
        """As it is read: with its unit."""
        typed = self.shown(settings)
        words = f"{int(typed):,}" if typed.isascii() and typed.isdigit() else typed
        return f"{words} {self.unit}" if words and self.unit else words

    def shown(self, settings: Settings) -> str:
        """As it is typed."""
        value = settings.get(self.name)
        if self.part and value is not None:
            value = value[self.part]
        if isinstance(value, list | tuple):
            return ", ".join(value)
        if isinstance(value, float):
            return f"{value:g}"
        return "" if value is None else str(value)


def _text(typed: str) -> str | None:
    return typed.strip() or None


def _names(typed: str) -> list[str] | None:
    return [name.strip() for name in typed.split(",") if name.strip()] or None


def _number(typed: str) -> float | None:
    return float(typed) if typed.strip() else None


def _whole(typed: str) -> int | None:
    return int(typed.replace(",", "")) if typed.strip() else None


def _is_yes(typed: str) -> bool:
    return typed == "yes"


FIELDS: Sequence[Field] = (
    Field("category", "Category", "One, or several with commas; none: everything.", _names),
    Field("types", "Types", "order.placed, payment.*; none: every type.", _names),
    Field("where", "Filter", "Over the properties of messages; none: all of them.", _text),
    Field("strategy", "Strategy", "How consumers of equal filter and priority share.", str, STRATEGIES),
    Field("on_park", "A parked message", "Whether it holds back those of its key.", str, ("continue", "block")),
    Field("timeout", "Time-out", "Seconds for a delivery, which then counts as failed.", _number, unit="s"),
    Field("retry", "Attempts", "Before a message is parked, the first included.", _whole, part="attempts"),
    Field("retry", "First wait", "Seconds before the second attempt.", _number, part="delay", unit="s"),
    Field("retry", "Longest wait", "Seconds between two attempts.", _number, part="max_delay", unit="s"),
    Field("stall_after", "Stalls after", "Failures in a row, or messages retrying.", _whole),
    Field("max_consumers", "Consumers", "How many are served at a time; none: as many as come.", _whole),
    Field("max_unrouted", "Unrouted", "Set aside before it reads no further.", _whole),
)
"""Of a subscription that was created for consumers. The rest is for programs."""

NEW: Sequence[Field] = (
    *FIELDS[:3],
    Field("start", "Start", "Where it begins.", str, ("beginning", "now")),
    Field("paused", "Paused", "Whether it waits until somebody resumes it.", _is_yes, ("no", "yes")),
    Field("tracking", "Tracking", "“all” stores every message, for pulling.", str, ("failures", "all")),
    *FIELDS[3:5],
)
"""What is asked for when one is created; everything else can be changed later."""


def changes_of(form: Mapping[str, Sequence[str]], settings: Settings) -> dict[str, Any]:
    """The settings that a form has other values for."""
    changed: dict[str, Any] = {}
    for field in FIELDS:
        typed = form.get(field.id)
        if typed is None or typed[-1].strip() == field.shown(settings):
            continue
        value = _read(field, typed[-1])
        if field.part:
            changed[field.name] = {**settings[field.name], **changed.get(field.name, {}), field.part: value}
        else:
            changed[field.name] = value
    changes: SubscriptionChanges = _converted(changed, SubscriptionChanges)
    return changes.options()


def new_of(form: Mapping[str, Sequence[str]]) -> tuple[str, dict[str, Any]]:
    """The name of a subscription to be created, and its options."""
    given = {field.name: _read(field, form[field.id][-1]) for field in NEW if form.get(field.id, [""])[-1].strip()}
    wanted: SubscriptionToCreate = _converted(
        {"name": form.get("name", [""])[-1].strip(), **given}, SubscriptionToCreate
    )
    return wanted.name, wanted.options()


def _read(field: Field, typed: str) -> Any:
    try:
        return field.read(typed)
    except ValueError:
        raise InvalidMessage(field.label, f"a number is wanted, not {typed!r}") from None


def _converted(values: dict[str, Any], wanted: type[Any]) -> Any:
    try:
        return msgspec.convert(values, wanted)
    except msgspec.ValidationError as error:
        raise InvalidMessage("settings", str(error)) from None
