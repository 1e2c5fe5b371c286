"""What somebody may have meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the known one that is close to it, or else all of them."""
    names = list(known)
    close = closest(name, names)
    return f": did you mean {close!r}?" if close else f"; it has {', '.join(names)}"


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is close to an unknown one, if any is."""
    return next(iter(get_close_matches(name, list(known), n=1)), None)
