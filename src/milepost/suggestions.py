"""What somebody may have meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the known one that is close to it, or else all of them."""
    names = list(known)
    close = get_close_matches(name, names, n=1)
    return f": did you mean {close[0]!r}?" if close else f"; it has {', '.join(names)}"
