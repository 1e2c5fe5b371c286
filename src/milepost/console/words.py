"""Numbers, times and foreign text as people read them."""

import re
from datetime import UTC, datetime
from typing import Any

import msgspec
from markupsafe import Markup

_STEPS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))
_HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]"
)
"""Control characters but for line feed and tab, what has no width, and what changes the direction of writing."""


def number(value: float | None) -> str:
    """With commas; nothing for nothing known."""
    return "" if value is None else f"{value:,.0f}"


def rate(value: float) -> str:
    """A second."""
    if value >= 10 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 0.1 else "<0.1"


def duration(seconds: float | None) -> str:
    """In the two largest units."""
    if seconds is None:
        return ""
    for size, unit, smaller, name in _STEPS:
        if seconds >= size:
            rest = int(seconds % size // smaller)
            return f"{int(seconds // size)} {unit} {rest} {name}" if rest else f"{int(seconds // size)} {unit}"
    if seconds >= 10 or seconds == int(seconds):
        return f"{seconds:.0f} s"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def ago(moment: datetime | None) -> Markup:
    """A time as it is from here; the exact one when one points at it. A script keeps it true."""
    if moment is None:
        return Markup()
    seconds = (datetime.now(UTC) - moment).total_seconds()
    words = f"in {duration(round(-seconds))}" if seconds < -1 else f"{duration(max(0, round(seconds)))} ago"
    exact = moment.astimezone(UTC)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        exact.isoformat(), f"{exact:%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC", words
    )


def visible(text: str | None) -> str:
    """Foreign text with what cannot be seen, or turns the rest around, spelled out."""
    if text is None:
        return ""
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def json(value: Any) -> str:
    """As it was appended: "7" is another value than 7."""
    return msgspec.json.encode(value).decode()


def several(count: int, word: str, plural: str | None = None) -> str:
    """A number with its noun."""
    return f"{count:,} {word if count == 1 else plural or word + 's'}"
