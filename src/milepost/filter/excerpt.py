"""The place in an expression that an error is about, for a person to see."""

from unicodedata import combining, east_asian_width

__all__ = ["excerpt", "on_one_line"]

_WIDTH_CHARACTERS = 72
_BEFORE_CHARACTERS = 48


def excerpt(text: str, offset: int) -> tuple[str, str]:
    """The line around an offset, cut to a readable width, and a line whose caret is under it."""
    start = max(text.rfind("\n", 0, offset), text.rfind("\r", 0, offset)) + 1
    line = text[start:].partition("\n")[0].partition("\r")[0]
    column = offset - start
    first = max(0, min(column - _BEFORE_CHARACTERS, len(line) - _WIDTH_CHARACTERS))
    last = min(len(line), first + _WIDTH_CHARACTERS)
    opening, closing = "…" * (first > 0), "…" * (last < len(line))
    before = opening + line[first:column]
    return f"    {_visible(before + line[column:last] + closing)}", f"    {_blank(before)}^"


def on_one_line(text: str, width: int) -> str:
    """A text on one line of at most so many characters, with nothing invisible in it."""
    shown = _visible(text[: width + 1].replace("\t", " "))
    return shown if len(shown) <= width else shown[: width - 1] + "…"


def _visible(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character == "\t" else "\N{REPLACEMENT CHARACTER}"
        for character in text
    )


def _blank(text: str) -> str:
    if text.isascii() and text.isprintable():
        return " " * len(text)
    return "".join("\t" if character == "\t" else " " * _columns(character) for character in text)


def _columns(character: str) -> int:
    if combining(character):
        return 0
    return 2 if east_asian_width(character) in ("W", "F") else 1
