"""Numbers in an address."""

from collections.abc import Mapping

from milepost.errors import InvalidMessage
from milepost.log.reader import END


def is_position(text: str) -> bool:
    """Whether a text is a number that a message could have."""
    return text.isascii() and text.isdigit() and len(text) <= len(str(END)) and int(text) <= END


def position_of(query: Mapping[str, str], name: str) -> int | None:
    """A position; None if the address has none. What is no position is refused."""
    text = query.get(name, "")
    if not text:
        return None
    if not is_position(text):
        raise InvalidMessage(name, f"a position is wanted, not {text[:40]!r}")
    return int(text)
