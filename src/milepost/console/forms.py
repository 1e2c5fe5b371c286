"""Read forms: JSON, settings and places as a person types them. Preview the changes of an action."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from milepost.console.templating import several
from milepost.dispatch.routing.routes import STRATEGIES
from milepost.engine.declare.declaration import Start
from milepost.engine.operate.control import Plan
from milepost.engine.operate.info import SubscriptionInfo
from milepost.errors import InvalidMessage
from milepost.server.http.json_limits import check_container_count, check_depth, count_containers
from milepost.server.limits import Limits
from milepost.wire.subscriptions import SubscriptionChanges, SubscriptionToCreate
from milepost.wire.values import parse_place


def parse_object(field: str, text: str, limits: Limits) -> dict[str, Any]:
    """Return the JSON object of a field. An empty field is an empty object."""
    if not text.strip():
        return {}
    found = msgspec.json.decode(check_json(field, text, limits))
    if not isinstance(found, dict):
        raise InvalidMessage(field, 'an object is wanted, such as {"region": "EU"}')
    return found


def check_json(field: str, text: str, limits: Limits) -> bytes:
    """Return JSON that can be stored as it is; raise `InvalidMessage` with the place if it is none."""
    try:
        encoded = text.encode()
        check_container_count(field, count_containers(encoded), limits.containers)
        check_depth(field, encoded, limits.depth)
        msgspec.json.decode(encoded)
    except RecursionError:
        raise InvalidMessage(field, "it is nested too deeply") from None
    except (UnicodeError, msgspec.DecodeError) as error:
        raise InvalidMessage(field, f"this is no JSON: {_json_error_place(text) or error}") from None
    return encoded


def _json_error_place(text: str) -> str | None:
    """Return the standard library's words on a mistake in JSON, which have its line and column."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return f"{error.msg[:1].lower()}{error.msg[1:]}, in line {error.lineno}, column {error.colno}"
    except (ValueError, RecursionError):
        return None
    return None


Settings = Mapping[str, Any]


@dataclass(frozen=True)
class SettingField:
    """A setting of a subscription, as a field of a form."""

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

    def described(self, settings: Settings) -> str:
        """Return the value as it is read: with its unit."""
        typed = self.typed(settings)
        words = f"{int(typed):,}" if typed.isascii() and typed.isdigit() else typed
        return f"{words} {self.unit}" if words and self.unit else words

    def typed(self, settings: Settings) -> str:
        """Return the value as it is typed."""
        value = settings.get(self.name)
        if self.part and value is not None:
            value = value[self.part]
        if isinstance(value, list | tuple):
            return ", ".join(value)
        if isinstance(value, float):
            return f"{value:g}"
        return "" if value is None else str(value)


def _parse_text(typed: str) -> str | None:
    return typed.strip() or None


def _parse_names(typed: str) -> list[str] | None:
    return [name.strip() for name in typed.split(",") if name.strip()] or None


def _parse_number(typed: str) -> float | None:
    return float(typed) if typed.strip() else None


def _parse_integer(typed: str) -> int | None:
    return int(typed.replace(",", "")) if typed.strip() else None


def _is_yes(typed: str) -> bool:
    return typed == "yes"


SETTING_FIELDS: Sequence[SettingField] = (
    SettingField("category", "Category", "One, or several with commas; none: everything.", _parse_names),
    SettingField("types", "Types", "order.placed, payment.*; none: every type.", _parse_names),
    SettingField("where", "Filter", "Over the properties of messages; none: all of them.", _parse_text),
    SettingField("strategy", "Strategy", "How consumers of equal filter and priority share.", str, STRATEGIES),
    SettingField(
        "on_park", "A parked message", "Whether it holds back those of its key.", str, ("continue", "block")
    ),
    SettingField(
        "timeout", "Time-out", "Seconds for a delivery, which then counts as failed.", _parse_number, unit="s"
    ),
    SettingField(
        "retry", "Attempts", "Before a message is parked, the first included.", _parse_integer, part="attempts"
    ),
    SettingField(
        "retry", "First wait", "Seconds before the second attempt.", _parse_number, part="delay", unit="s"
    ),
    SettingField(
        "retry", "Longest wait", "Seconds between two attempts.", _parse_number, part="max_delay", unit="s"
    ),
    SettingField("stall_after", "Stalls after", "Failures in a row, or messages retrying.", _parse_integer),
    SettingField(
        "max_consumers", "Consumers", "How many are served at a time; none: as many as come.", _parse_integer
    ),
    SettingField("max_unrouted", "Unrouted", "Set aside before it reads no further.", _parse_integer),
)
"""Of a subscription that was created for consumers. The rest is for programs."""

NEW_SUBSCRIPTION_FIELDS: Sequence[SettingField] = (
    *SETTING_FIELDS[:3],
    SettingField("start", "Start", "Where it begins.", str, ("beginning", "now")),
    SettingField("paused", "Paused", "Whether it waits until somebody resumes it.", _is_yes, ("no", "yes")),
    SettingField("tracking", "Tracking", "“all” stores every message, for pulling.", str, ("failures", "all")),
    *SETTING_FIELDS[3:5],
)
"""The fields of a new subscription; everything else can be changed later."""


def read_changes(form: Mapping[str, Sequence[str]], settings: Settings) -> dict[str, Any]:
    """Return the settings that a form has other values for."""
    changed: dict[str, Any] = {}
    for each in SETTING_FIELDS:
        typed = form.get(each.id)
        if typed is None or typed[-1].strip() == each.typed(settings):
            continue
        value = _read_field(each, typed[-1])
        if each.part:
            changed[each.name] = {**settings[each.name], **changed.get(each.name, {}), each.part: value}
        else:
            changed[each.name] = value
    changes: SubscriptionChanges = _convert(changed, SubscriptionChanges)
    return changes.options()


def read_new_subscription(form: Mapping[str, Sequence[str]]) -> tuple[str, dict[str, Any]]:
    """Return the name of a subscription to be created, and its options."""
    given = {
        field.name: _read_field(field, form[field.id][-1])
        for field in NEW_SUBSCRIPTION_FIELDS
        if form.get(field.id, [""])[-1].strip()
    }
    wanted: SubscriptionToCreate = _convert(
        {"name": form.get("name", [""])[-1].strip(), **given}, SubscriptionToCreate
    )
    return wanted.name, wanted.options()


def _read_field(field: SettingField, typed: str) -> Any:
    try:
        return field.read(typed)
    except ValueError:
        raise InvalidMessage(field.label, f"a number is wanted, not {typed!r}") from None


def _convert(values: dict[str, Any], wanted: type[Any]) -> Any:
    try:
        return msgspec.convert(values, wanted)
    except msgspec.ValidationError as error:
        raise InvalidMessage("settings", str(error)) from None


@dataclass(frozen=True)
class ChangePreview:
    """The effects of a change, in words."""

    words: Sequence[str]
    irreversible: Sequence[str] = field(default=())
    """Effects that cannot be undone."""


def read_place(form: Mapping[str, str], name: str) -> Start | None:
    """Return the place that a form names by `name`, `name-position` and `name-time`; None if it names none."""
    match form.get(name, ""):
        case "position":
            return parse_place(name, form.get(f"{name}-position", "").strip())
        case "time":
            return _parse_time(name, form.get(f"{name}-time", ""))
        case "":
            return None
        case word:
            return parse_place(name, word)


def _parse_time(name: str, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        raise InvalidMessage(name, "a time is wanted") from None


def preview_move(plan: Plan) -> ChangePreview:
    """Return the effects of a move."""
    words = [f"It goes on after position {plan.position:,}."]
    irreversible = []
    if plan.again:
        words.append(f"At most {several(plan.again, 'message comes', 'messages come')} again.")
    if plan.passed_over:
        irreversible.append(f"At most {several(plan.passed_over, 'message is', 'messages are')} never handled.")
    if plan.rows:
        irreversible.append(_forgotten_deliveries(plan.rows))
    if not plan.again and not irreversible:
        words.append("Nothing comes again, and nothing is left out.")
    return ChangePreview(words, irreversible)


def preview_replay(plan: Plan) -> ChangePreview:
    """Return the effects of a replay."""
    words = [
        f"It goes back to position {plan.position:,} and repeats at most "
        f"{several(plan.again, 'message')}, marked as a replay; then it goes on where it was."
    ]
    return ChangePreview(words, [_forgotten_deliveries(plan.rows)] if plan.rows else [])


def preview_pause(info: SubscriptionInfo) -> ChangePreview:
    """Return the effects of a pause."""
    first = (
        f"{several(info.in_flight, 'message')} in flight may end first; then nothing"
        if info.in_flight
        else "Nothing"
    )
    return ChangePreview(
        [
            f"{first} of it runs, in any process, until somebody resumes it. Restarts change nothing about that.",
            f"It is {several(info.lag.positions, 'position')} behind, and what is appended meanwhile waits.",
        ]
    )


def preview_resume(info: SubscriptionInfo) -> ChangePreview:
    """Return the effects of resuming."""
    return ChangePreview([f"It goes on where it was, {several(info.lag.positions, 'position')} behind."])


def preview_delete(info: SubscriptionInfo) -> ChangePreview:
    """Return the effects of deleting."""
    rows = {
        state: count for state in ("retrying", "waiting", "parked", "unrouted") if (count := getattr(info, state))
    }
    anew = "A program that declares it makes it anew when it starts, and begins at its start again."
    listed = f" and {several(sum(rows.values()), 'delivery', 'deliveries')} are" if rows else " is"
    return ChangePreview([anew] if info.settings is None else [], [f"Its progress{listed} forgotten for good."])


def _forgotten_deliveries(rows: Mapping[str, int]) -> str:
    listed = ", ".join(f"{count:,} {state}" for state, count in sorted(rows.items()))
    return f"Deliveries that are forgotten: {listed}."


def preview_retry(count: int) -> ChangePreview:
    """Return the effects of retrying so many deliveries."""
    return ChangePreview([f"{several(count, 'message is', 'messages are')} tried now, and counted anew."])


def preview_skip(count: int) -> ChangePreview:
    """Return the effects of skipping so many deliveries."""
    lost = f"{several(count, 'message is', 'messages are')} passed over for good: nobody handles {_them(count)}."
    return ChangePreview([f"What waits behind {_them(count)} goes on."], [lost])


def _them(count: int) -> str:
    return "it" if count == 1 else "them"
