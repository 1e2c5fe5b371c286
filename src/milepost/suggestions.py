"""What somebody may have meant."""

from collections.abc import Iterable
from difflib import get_close_matches
from inspect import signature
from typing import Any, Self

MAX_NAME_CHARACTERS = 1100
"""The longest word that is compared with others: comparing takes time. No address of a subscription is longer."""


class Suggesting:
    """A class of options, all given by their names: a misspelt one is refused with the one that is meant."""

    def __new__(cls, *_: Any, **options: Any) -> Self:
        known = signature(cls.__init__).parameters
        for name in options:
            if name not in known:
                raise TypeError(f"{cls.__name__} has no option {name!r}{suggestion(name, list(known)[1:])}")
        return super().__new__(cls)


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the known one that is close to it, or else all of them."""
    names = list(known)
    close = closest(name, names)
    return f": did you mean {close!r}?" if close else f"; it has {', '.join(names)}"


def aside(word: object, known: Iterable[str]) -> str:
    """The same for a sentence that names all of them anyway: the close one in parentheses, or nothing."""
    close = closest(word, known) if isinstance(word, str) else None
    return f" (did you mean {close!r}?)" if close else ""


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is close to an unknown one, if any is."""
    if len(name) > MAX_NAME_CHARACTERS:
        return None
    return next(iter(get_close_matches(name, list(known), n=1)), None)
