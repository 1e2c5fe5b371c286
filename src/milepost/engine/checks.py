"""Checks of values that a user gives: return the value, or raise a `ValueError` that says what is expected."""

import re
from collections.abc import Callable, Iterable
from reprlib import Repr
from typing import Any, Final, TypeVar

from milepost.errors import FilterError
from milepost.names import suggestion_in_parentheses

T = TypeVar("T")

Check = Callable[[Any], T]
"""Gives the value as it is to be used, or raises a `ValueError` that says what is wanted."""

MAX_DURATION_SECONDS = 100 * 366 * 86_400
"""The longest time that anything may take, in seconds: a hundred years, which every clock can add."""

MAX_COUNTABLE_NUMBER = 2**31 - 1
"""The largest number of anything that is counted: what the database's counts hold."""

_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")

_shortened = Repr()
_shortened.maxstring = _shortened.maxother = 80


def checked(name: str, check: Check[T], value: Any) -> T:
    """The value as its check gives it; a wrong one is refused with the name it was given under."""
    try:
        return check(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}, not {_shown(value)}") from None


def _shown(value: Any) -> str:
    try:
        return _shortened.repr(value)
    except ValueError:
        return f"such a long {type(value).__name__}"


def whole(least: int, most: int | None = None) -> Check[int]:
    """A whole number in a range."""
    wanted = f"at least {least:,}" if most is None else f"from {least:,} to {most:,}"

    def check(value: Any) -> int:
        if type(value) is not int or value < least or (most is not None and value > most):
            raise ValueError(f"a whole number {'of ' if most is None else ''}{wanted} is wanted")
        return value

    return check


def seconds(least: float = 0, *, more: bool = False) -> Check[float]:
    """A time in seconds, at least so long; with `more`, longer than that."""
    wanted = f"{'more than' if more else 'at least'} {least}"

    def check(value: Any) -> float:
        # Written so that NaN is refused as well.
        if type(value) not in (int, float) or not (least < value if more else least <= value):
            raise ValueError(f"a number of seconds, {wanted}, is wanted")
        if value > MAX_DURATION_SECONDS:
            raise ValueError(f"at most {MAX_DURATION_SECONDS:,} seconds, a hundred years, are wanted")
        return float(value)

    return check


def yes_or_no(value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise ValueError("True or False is wanted")  # noqa: TRY004 - as with every option
    return value


def one_of(*texts: str) -> Check[str]:
    """One of a few words."""
    wanted = " or ".join(f'"{text}"' for text in texts)

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in texts:
            raise ValueError(f"{wanted} is wanted{suggestion_in_parentheses(value, texts)}")
        return value

    return check


def instance_of(cls: type[T], wanted: str) -> Check[T]:
    """An object of a class."""

    def check(value: Any) -> T:
        if not isinstance(value, cls):
            raise ValueError(f"{wanted} is wanted")  # noqa: TRY004 - as with every option
        return value

    return check


def instances(name: str, cls: type[T], given: Iterable[T], *, called: str | None = None) -> list[T]:
    """Return several objects of a class in their order, each once; anything else is refused.

    `called` is the word for the class in the error. Defaults to its name.
    """
    several = list(dict.fromkeys(given)) if isinstance(given, Iterable) else [given]
    if not isinstance(given, Iterable) or not all(isinstance(one, cls) for one in several):
        wrong = next((one for one in several if not isinstance(one, cls)), given)
        raise ValueError(
            f"{name}: a list of objects of {called or cls.__qualname__} is wanted, not {_shown(wrong)}"
        )
    return several


def optional(check: Check[T]) -> Check[T | None]:
    """What a check accepts, or None."""
    return lambda value: None if value is None else check(value)


def check_storable_filter(text: str) -> None:
    """Refuse a filter with a character that PostgreSQL does not store, and so no message has."""
    if found := _UNSTORABLE.search(text):
        raise FilterError("syntax", found.start(), f"no message has {found[0]!r} in a property: take it out")
