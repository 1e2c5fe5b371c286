"""A subscription as a program declares it: its name and address, where it starts, and every option, checked."""

import json
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from milepost.dispatch import Cursor, Retry, Settings
from milepost.engine.checks import (
    MAX_COUNTABLE_NUMBER,
    Check,
    check_storable_filter,
    checked,
    instance_of,
    one_of,
    optional,
    seconds,
    whole,
    yes_or_no,
)
from milepost.engine.declare.order import BY_STREAM, NO_ORDER, Order, order_from_option
from milepost.errors import FilterError, InvalidMessage, UnknownSubscription
from milepost.filter import Filter, compile_filter
from milepost.log.codec import check_name, check_text
from milepost.log.protocol import Log
from milepost.log.query import Selection, Since, TypePatterns
from milepost.names import (
    MAX_INTEGER,
    OptionsWithSuggestions,
    category_of,
    closest_name,
    suggestion,
    suggestion_in_parentheses,
)


@dataclass(frozen=True, kw_only=True)
class Checkpoint(OptionsWithSuggestions):
    """When a lane writes its progress: whichever comes first. A killed worker repeats at most that much.

    `seconds`: so long after the first message that is not written yet. Defaults to 0.2.
    `messages`: after so many. Defaults to 1,000.
    """

    seconds: float = 0.2
    messages: int = 1000

    def __post_init__(self) -> None:
        checked("Checkpoint: seconds", seconds(), self.seconds)
        checked("Checkpoint: messages", whole(1, MAX_COUNTABLE_NUMBER), self.messages)


Start = Literal["beginning", "now"] | datetime | int


def checked_start(value: Any) -> Start:
    """What was given as a place to start at; a `ValueError` says what is wanted."""
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ValueError("a datetime with a time zone is wanted")
        return value
    if type(value) is int and 0 <= value <= MAX_INTEGER:
        return value
    if isinstance(value, str) and value in ("beginning", "now"):
        return "now" if value == "now" else "beginning"
    meant = suggestion_in_parentheses(value, ("beginning", "now"))
    raise ValueError(f'"beginning", "now", a datetime or a position is wanted{meant}')


async def refuse_beyond_end(name: str, start: Start, log: Log, of: str = "") -> None:
    """Raise `InvalidMessage` for a position after the last one of the log: what comes until then would be missed.

    `of` says of which subscription, where the caller has several.
    """
    if not isinstance(start, int):
        return
    drawn = (await log.current_horizon(wait_for_short_appends=False)).drawn
    if start > drawn:
        raise InvalidMessage(name, f"{of}the log ends at position {drawn:,}, before {start:,}")


async def cursor_of_start(start: Start, log: Log) -> tuple[Cursor, Since | None]:
    """The cursor that a start means, and the time before which messages are passed over, if it is one.

    Both are exact against messages that commit late. `now` is the horizon, with what is visible above it done. A
    time is before the first message of that time or later, but never above the horizon, where older ones, and
    newer ones too, may still appear.
    """
    if isinstance(start, int):
        return Cursor(start), None
    if start == "beginning":
        return Cursor(0), None
    horizon = (await log.current_horizon()).position
    if isinstance(start, datetime):
        position = min(await log.position_before(start), horizon)
        return Cursor(position), Since(start, position)
    return Cursor(horizon, tuple(await log.visible_above(horizon))), None


MAX_LISTED_SUBSCRIPTIONS = 10
"""How many subscriptions are named where none is like the one that was asked for."""


def unknown_subscription(
    group: str | None, name: str | None, known: Collection[tuple[str, str]], *, otherwise: str | None = None
) -> UnknownSubscription:
    """Return the error of a group and a name that no subscription has; `known` has those of all that there are.

    `group` or `name` is None where any was asked for. `otherwise` ends the sentence where none is like it; without
    it that lists what there is.
    """
    asked = f"{group or '*'}/{name or '*'}"
    if meant := _closest_address(group, name, known):
        return UnknownSubscription(asked, f": did you mean {meant!r}?")
    return UnknownSubscription(asked, otherwise or _known_addresses(known))


def _closest_address(group: str | None, name: str | None, known: Collection[tuple[str, str]]) -> str | None:
    """The address that is meant: the name tells more than the group, which one leaves out more easily."""
    if name is None:
        like = closest_name(group or "", {each for each, _ in known})
        return None if like is None else f"{like}/*"
    names = {each for _, each in known}
    like = name if name in names else closest_name(name, sorted(names))
    if like is None:
        return closest_name(f"{group or '*'}/{name}", sorted(f"{each}/{of}" for each, of in known))
    groups = sorted(each for each, of in known if of == like)
    own = group if group in groups else closest_name(group or "", groups) or groups[0]
    return f"{own}/{like}"


def _known_addresses(known: Collection[tuple[str, str]]) -> str:
    if not known:
        return "; there is none at all"
    addresses = sorted(f"{group}/{name}" for group, name in known)
    more = len(addresses) - MAX_LISTED_SUBSCRIPTIONS
    return (
        f"; there is {', '.join(addresses[:MAX_LISTED_SUBSCRIPTIONS])}{f' and {more:,} more' if more > 0 else ''}"
    )


DEFAULT_BATCH_MESSAGES: Final = 100
"""At most so many messages for a handler of a list, where the subscription does not say."""
DEFAULT_LANES: Final = 16
"""So many, where the subscription does not say."""
DEFAULT_TRANSACTION_LANES: Final = 1
"""So many if its handlers write in transactions. Side by side, two of them may read the same row, and one undoes
what the other makes of it."""
MAX_LANES: Final = 1024
"""As many as there are buckets."""


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What a subscription was declared with. `Declaration.of` makes one from the options that a user wrote.

    `category`, `stream`, `types`: what it selects; none of them: everything.
    `where`: a filter over the messages' properties.
    `start`: where it begins when it is new: "beginning" (the default), "now", a time, which means the messages
    of that time or later, or a position, which means those after it.
    `paused`: whether it waits, when it is new, until somebody resumes it. Defaults to False.
    `ordered_by`: which messages are handled one after the other. Defaults to those of a stream.
    `lanes`: how many processes can share it, 1 to 1,024. Defaults to 16, or 1 if a handler takes a Transaction.
    `concurrency`: how many messages one process handles at once. Defaults to the process's own limit.
    `window`: how many messages of a lane may be open or read ahead. Defaults to 1,000.
    `batch`: at most so many messages for a handler of `list[…]`. Defaults to 100, or the window if that is less.
    `retry`: what follows a failed attempt.
    `on_park`: whether a parked message holds back those of its key, "block" (the default), or not, "continue".
    `tracking`: "failures" (the default) stores what needs attention, "all" every message before it is handled.
    `timeout`: seconds for a call of a handler, which then counts as failed. Defaults to 30.
    `checkpoint`: how often a lane's progress is written.
    `isolation`: of the transactions of handlers that take one: "repeatable read" or "serializable". Defaults to
    "read committed".
    `lease`: seconds after which a worker that gave no sign of life is replaced. Defaults to 30.
    `stall_after`: how many failures in a row, or messages retrying, stop it until one succeeds. Defaults to 1,000.
    `max_waiting`: how many messages may wait behind others before it reads no further. Defaults to 100,000.
    `keep_done`: for how many seconds stored messages that are done are kept. Defaults to not at all.
    `renamed_from`: the name under which its progress was stored before.
    """

    name: str
    category: tuple[str, ...] | None = None
    stream: tuple[str, ...] | None = None
    types: tuple[str, ...] | None = None
    where: Filter | None = None
    start: Start = "beginning"
    paused: bool = False
    ordered_by: Order = BY_STREAM
    lanes: int | None = None
    concurrency: int | None = None
    window: int = 1000
    batch: int | None = None
    retry: Retry = field(default_factory=Retry)
    on_park: Literal["block", "continue"] = "block"
    tracking: Literal["failures", "all"] = "failures"
    timeout: float = 30
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    isolation: Literal["read committed", "repeatable read", "serializable"] = "read committed"
    lease: float = 30
    stall_after: int = 1000
    max_waiting: int = 100_000
    keep_done: float | None = None
    renamed_from: str | None = None

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any]) -> "Declaration":
        """Checks a name and the options that were given for it.

        An unknown option is a `TypeError`, a wrong value a `ValueError`, a wrong filter a `FilterError`.
        """
        if callable(name):
            raise TypeError('a subscription has a name: write @mp.subscription("name", …)')
        checked("subscription", checked_name, name)
        for option in options:
            if option in _FOR_CONSUMERS:
                raise TypeError(f"subscription {name!r}: {option} is for consumers, by mp.create_subscription(…)")
            if option not in _CHECKS:
                raise TypeError(f"subscription {name!r} has no option {option!r}{suggestion(option, _CHECKS)}")
        values = {
            option: _checked_option(f"subscription {name!r}: {option}", _CHECKS[option], value)
            for option, value in options.items()
        }
        declaration = cls(name=name, **values)
        declaration._refuse_contradictions()
        return declaration

    def _refuse_contradictions(self) -> None:
        if self.batch is not None and self.batch > self.window:
            raise ValueError(
                f"subscription {self.name!r}: batch: at most the window of {self.window:,} is wanted, "
                f"not {self.batch:,}"
            )
        if self.renamed_from == self.name:
            raise ValueError(f"subscription {self.name!r}: renamed_from: this is its name already")
        if self.category and self.stream and set(self.category).isdisjoint(map(category_of, self.stream)):
            raise ValueError(
                f"subscription {self.name!r}: stream: {_joined_names(self.stream)} can never be of category "
                f"{_joined_names(self.category)}: leave one of them out"
            )

    def selection(self, handled: Set[str] | None = None) -> Selection:
        """What it selects, where its handlers take only these types; None: any."""
        chosen = Selection.of(category=self.category, stream=self.stream, types=self.types)
        if handled is None:
            return chosen
        return Selection(chosen.categories, chosen.streams, TypePatterns.of(frozenset(self.taken(handled))))

    def taken(self, types: Set[str]) -> list[str]:
        """Those of the types that it selects, sorted."""
        chosen = None if self.types is None else TypePatterns.of(frozenset(self.types))
        return sorted(name for name in types if chosen is None or chosen.match(name))

    def selects(self, handled: Set[str] | None = None) -> str:
        """The same as one text, equal for all declarations that select the same in the same words."""
        selected = {
            "category": self.category,
            "stream": self.stream,
            "types": self.types if handled is None else self.taken(handled),
            "where": None if self.where is None else self.where.canonical,
        }
        return json.dumps(selected, ensure_ascii=False, sort_keys=True, separators=(",", ":"))

    @property
    def orders(self) -> str:
        """What it orders by, as one text."""
        return self.ordered_by.text

    def dispatch_settings(self, order: Order) -> Settings:
        """What this means to a lane with the order that is in force. The time-out is the handler's caller's."""
        return Settings(
            window=self.window,
            ordered=order != NO_ORDER,
            on_park=self.on_park,
            retry=self.retry,
            track_all=self.tracking == "all",
            probation=self.window + self.checkpoint.messages,
            stall_after=self.stall_after,
            max_waiting=self.max_waiting,
            keep_done=self.keep_done,
        )


def _checked_option(name: str, check: Check[Any], value: Any) -> Any:
    try:
        return checked(name, check, value)
    except FilterError as error:
        raise FilterError(error.kind, error.offset, f"{name}: {error}") from None


def _joined_names(names: tuple[str, ...]) -> str:
    return " or ".join(map(repr, names))


def checked_name(value: Any) -> str:
    """The name of a subscription, or of a group; a `ValueError` says what is wanted."""
    if not isinstance(value, str):
        raise ValueError("a name is wanted")  # noqa: TRY004 - as with every option
    try:
        check_name("name", value)
    except InvalidMessage as error:
        raise ValueError(f"a name is wanted ({str(error).removeprefix('name: ')})") from None
    if "/" in value:
        raise ValueError("a name without / is wanted, which stands between group and name")
    return value


def address_of(subscription: str, own_group: str) -> tuple[str, str]:
    """Return the group and the name of `group/name`, or of a name alone, which is in the program's own group."""
    if not isinstance(subscription, str):
        raise ValueError(  # noqa: TRY004 - as with every option
            f"subscription: a name or group/name is wanted, not {subscription!r}"
        )
    try:
        check_text("subscription", subscription)
    except InvalidMessage as error:
        raise ValueError(
            f"subscription: a name or group/name is wanted ({str(error).removeprefix('subscription: ')})"
        ) from None
    group, _, name = subscription.rpartition("/")
    if not name:
        raise ValueError(f"subscription: a name or group/name is wanted, not {subscription!r}")
    return group or own_group, name


def _names_check(option: str) -> Check[tuple[str, ...] | None]:
    """One name or several; sorted, since their order means nothing."""

    def check(value: Any) -> tuple[str, ...] | None:
        if value is None:
            return None
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list | tuple | set | frozenset) or not all(isinstance(n, str) for n in names):
            raise ValueError("a text or a list of texts is wanted")
        chosen = tuple(sorted(set(names)))
        try:
            Selection.of(**{option: chosen})
        except InvalidMessage as error:
            raise ValueError(f"a name or several are wanted ({str(error).removeprefix(f'{option}: ')})") from None
        return chosen

    return check


def _checked_categories(value: Any) -> tuple[str, ...] | None:
    """As other choices. A reader sees at once that nothing comes; a subscription would wait for ever."""
    chosen = _names_check("category")(value)
    for name in chosen or ():
        if "-" in name:
            whole = category_of(name)
            hint = f"write category={whole!r}, or stream={name!r}" if whole else "take the dash out"
            raise ValueError(
                f"a name or several are wanted ({name!r}: a category ends before the first dash: {hint})"
            )
    return chosen


def _checked_filter(value: Any) -> Filter | None:
    if value is None:
        return None
    if not isinstance(value, str | Filter):
        raise ValueError("a filter expression is wanted")  # noqa: TRY004 - as with every option
    compiled = value if isinstance(value, Filter) else compile_filter(value)
    check_storable_filter(compiled.text)
    return compiled


_CHECKS: dict[str, Check[Any]] = {
    "category": _checked_categories,
    "stream": _names_check("stream"),
    "types": _names_check("types"),
    "where": _checked_filter,
    "start": checked_start,
    "paused": yes_or_no,
    "ordered_by": order_from_option,
    "lanes": whole(1, MAX_LANES),
    "concurrency": optional(whole(1, MAX_COUNTABLE_NUMBER)),
    "window": whole(1, MAX_COUNTABLE_NUMBER),
    "batch": optional(whole(1, MAX_COUNTABLE_NUMBER)),
    "retry": instance_of(Retry, "Retry(…)"),
    "on_park": one_of("block", "continue"),
    "tracking": one_of("failures", "all"),
    "timeout": seconds(more=True),
    "checkpoint": instance_of(Checkpoint, "Checkpoint(…)"),
    "isolation": one_of("read committed", "repeatable read", "serializable"),
    "lease": seconds(1),
    "stall_after": whole(1, MAX_COUNTABLE_NUMBER),
    "max_waiting": whole(1, MAX_COUNTABLE_NUMBER),
    "keep_done": optional(seconds(more=True)),
    "renamed_from": optional(checked_name),
}

_FOR_CONSUMERS: Final = ("strategy", "max_consumers", "max_unrouted", "if_exists")

SUBSCRIPTION_OPTIONS: Final = tuple(_CHECKS)
"""The names of all options."""
