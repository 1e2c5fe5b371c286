"""The options of a `Milepost`: given in code, else by the environment, else their defaults."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from milepost.names import MigrateMode, suggestion
from milepost.progress.protocol import Leases, Progress


@dataclass(frozen=True)
class Setting:
    """The value of one option and where it came from."""

    name: str
    value: Any
    source: str


@dataclass(frozen=True)
class Option:
    """One option: what it is for, its default, and how a text becomes its value."""

    name: str
    help: str
    default: Any
    parse: Callable[[Any], Any]
    in_code_only: bool = False
    """Whether no text can say it."""

    @property
    def variable(self) -> str | None:
        """The environment variable that sets it."""
        return None if self.in_code_only else f"MILEPOST_{self.name.upper()}"


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a text is wanted")
    return value


def _schema(value: Any) -> str:
    name = _text(value)
    # Also the name of the channel for wake-ups, which PostgreSQL cuts at 63 bytes.
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,62}", name) or name.startswith("pg_"):
        raise ValueError("letters, digits and _, at most 63 of them and not beginning with pg_, are wanted")
    return name


def _at_least(least: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        try:
            number = int(value)
        except (TypeError, ValueError):
            number = least - 1
        if number < least or isinstance(value, bool | float):
            raise ValueError(f"a whole number of at least {least} is wanted")
        return number

    return parse


def _migrate(value: Any) -> MigrateMode:
    if value not in get_args(MigrateMode):
        raise ValueError('"auto", "check" or "off" is wanted')
    return cast(MigrateMode, value)


def _progress(value: Any) -> str | Progress:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, type) or not isinstance(value, Progress):
        raise ValueError("the address of a database, or an object such as MemoryProgress(), is wanted")  # noqa: TRY004
    return value


def _leases(value: Any) -> Leases:
    if isinstance(value, type) or not isinstance(value, Leases):
        raise ValueError("an object such as AdvisoryLeases() or MemoryLeases() is wanted")  # noqa: TRY004
    return value


OPTIONS = {
    option.name: option
    for option in (
        Option("url", "the PostgreSQL: postgresql://…, or embedded for one in ./.milepost", None, _text),
        Option(
            "group", "the subscriptions that this program serves together with others like it", "default", _text
        ),
        Option("schema", "the schema that holds the log", "milepost", _schema),
        Option("progress", "another database for progress: postgresql://…; else the log's", None, _progress),
        Option("leases", "what says which process works on what; else rows beside progress", None, _leases, True),
        Option(
            "pool_size",
            "connections for calls; one for the horizon and one for wake-ups come on top",
            8,
            _at_least(1),
        ),
        Option(
            "concurrency",
            "how many messages a process handles at once",
            min(20, 5 * (os.cpu_count() or 1)),
            _at_least(1),
        ),
        Option("migrate", "what to do about the schema on start: auto, check or off", "auto", _migrate),
        Option("max_message_bytes", "the largest message, in bytes of JSON", 2**20, _at_least(1)),
    )
}


def resolve(given: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> dict[str, Setting]:
    """Every option with its value and its source; what is wrong is a `TypeError` or `ValueError`."""
    for name in given:
        if name not in OPTIONS:
            raise TypeError(f"Milepost has no option {name!r}{suggestion(name, OPTIONS)}")
    return {option.name: _setting(option, given.get(option.name), environment) for option in OPTIONS.values()}


def _setting(option: Option, given: Any, environment: Mapping[str, str]) -> Setting:
    if given is not None:
        return Setting(option.name, _parsed(option, option.name, given), "given")
    if option.variable is not None and environment.get(option.variable):
        value = _parsed(option, option.variable, environment[option.variable])
        return Setting(option.name, value, option.variable)
    return Setting(option.name, option.default, "default")


def _parsed(option: Option, name: str, value: Any) -> Any:
    try:
        return option.parse(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}, not {value!r}") from None
