"""The options and arguments that commands share, and the objects made of them: programs, addresses, times."""

import os
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from importlib import import_module
from math import isfinite
from types import ModuleType
from typing import Annotated, Any, BinaryIO

import typer

from milepost.app import Milepost
from milepost.cli.exit_status import TRACEBACK_VARIABLE, CommandError, argument_errors
from milepost.engine.declare.subscription import Subscription
from milepost.names import suggestion
from milepost.options import Setting, resolve

_DURATION = re.compile(r"([0-9]{1,9})([smhdw])", re.ASCII)
_AGO = re.compile(r"([0-9]{1,9})([smhd])(?: ago)?", re.ASCII)
_TIME_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_time(name: str, text: str) -> datetime:
    """Return the time that an option of this name means. Without a time zone it is this machine's."""
    if ago := _AGO.fullmatch(text):
        try:
            return datetime.now(UTC) - timedelta(**{_TIME_UNITS[ago[2]]: int(ago[1])})
        except OverflowError:
            raise CommandError(f"{name} {text!r}: that is before all time") from None
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise CommandError(
            f"{name} {text!r}: a time such as 2026-03-01T12:00:00Z is wanted, or 90s, 15m, 3h, 2d ago"
        ) from None


def parse_expiry(name: str, text: str) -> datetime | timedelta:
    """Return when something ends, or after which time; without a time zone it is this machine's."""
    try:
        if life := _DURATION.fullmatch(text):
            return timedelta(**{_TIME_UNITS[life[2]]: int(life[1])})
        return datetime.fromisoformat(text).astimezone()
    except OverflowError:
        raise CommandError(f"{name} {text!r}: that is after all time") from None
    except ValueError:
        raise CommandError(
            f"{name} {text!r}: how long it lasts is wanted, such as 12h, 30d or 8w, or when it ends, such as "
            "2026-12-31 or 2026-12-31T18:00:00Z"
        ) from None


Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The PostgreSQL: postgresql://…, or embedded for one in ./.milepost. Else MILEPOST_URL.",
        show_default=False,
    ),
]
Schema = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar="NAME",
        help="The schema that holds the log. Else MILEPOST_SCHEMA, else milepost.",
        show_default=False,
    ),
]
DEFAULT_PORT = 8480
"""The port of `milepost serve`, and the first that `milepost demo` tries."""
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program instead.")]


def check_seconds(name: str, seconds: float) -> float:
    """Return the seconds that an option of this name was given; refuse the numbers nan and inf."""
    if not isfinite(seconds):
        raise CommandError(f"{name} {seconds}: a number is wanted")
    return seconds


def resolve_settings(url: str | None, schema: str | None) -> dict[str, Setting]:
    """Return every option with its value and its source."""
    with argument_errors():
        return resolve({"url": url, "schema": schema})


def make_milepost(url: str | None, schema: str | None, **options: Any) -> Milepost:
    """Return the `Milepost` of the options and the environment. It is not open yet."""
    database_url(url, schema)
    return Milepost(url, schema=schema, **options)


def database_url(url: str | None, schema: str | None) -> str:
    """Return the address as it was given; refuse that there is none."""
    given: str | None = resolve_settings(url, schema)["url"].value
    if given is None:
        raise CommandError("no database: give --url postgresql://…, or --url embedded, or set MILEPOST_URL")
    return given


Program = Annotated[
    str, typer.Argument(metavar="MODULE:OBJECT", help="Where the Milepost is: shop:mp is mp in shop.py.")
]


def load_program(text: str) -> Milepost:
    """Import a program and return the `Milepost` that `module:object` names."""
    module_name, _, name = text.partition(":")
    if not module_name or not name:
        raise CommandError(f"{text!r}: a module and an object in it are wanted, such as shop:mp")
    module = _import_program(module_name)
    if not hasattr(module, name):
        there = [known for known, value in vars(module).items() if isinstance(value, Milepost)]
        hint = suggestion(name, there) if there else "; it has no Milepost at all"
        raise CommandError(f"module {module_name!r} has no {name!r}{hint}")
    found = getattr(module, name)
    if not isinstance(found, Milepost):
        raise CommandError(f"{text} is no Milepost, but of type {type(found).__name__}")
    return found


def _import_program(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise CommandError(f"there is no module {error.name!r} in {here}, nor is one installed") from None
        raise CommandError(
            f"module {name!r} cannot be imported: {type(error).__name__}: {error}; "
            f"set {TRACEBACK_VARIABLE}=1 to see where this comes from"
        ) from error


def declared_subscriptions(program: str, mp: Milepost) -> Sequence[Subscription]:
    """Return the subscriptions of a program; refuse one that has none, or has one that cannot run."""
    with argument_errors():
        declared = mp.declared()
    if not declared:
        raise CommandError(
            f"{program} has no subscriptions: declare one with @mp.subscription(…) in a module it imports"
        )
    return declared


def standard_input() -> BinaryIO:
    """Return standard input as a stream of bytes; refuse a closed one."""
    if sys.stdin is None:
        raise CommandError("standard input is closed: there is nothing to read")
    return sys.stdin.buffer


SubscriptionAddress = Annotated[
    str, typer.Argument(metavar="SUBSCRIPTION", help="group/name; the name alone is one of MILEPOST_GROUP.")
]


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without a question.")]


def confirm(what: str, yes: bool) -> None:
    """Ask before a change, unless `--yes` was given. Raise `CommandError` if the answer is no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(f"{what}: nobody is there to ask; say --yes")
    if not typer.confirm(f"{what}?", err=True):
        raise CommandError("nothing was done")
