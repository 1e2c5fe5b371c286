"""Jinja templates, and the formats of numbers, times, payloads and untrusted text in them."""

import hashlib
import re
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from milepost.console.charts import chart, sparkline
from milepost.server.http.json_limits import count_containers, json_depth

_STEPS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))
_INVISIBLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb]"
)
"""Control characters but for line feed and tab, what has no width, and what changes the direction of writing."""


def number(value: float | None) -> str:
    """Return a number with commas; empty for None."""
    return "" if value is None else f"{value:,.0f}"


def rate(value: float) -> str:
    """Return a rate a second."""
    if value >= 10 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 0.1 else "<0.1"


def duration(seconds: float | None) -> str:
    """Return a duration in the two largest units."""
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
    """Return a time as its distance from now, with the exact time as its title. A script keeps it true."""
    if moment is None:
        return Markup()
    seconds = (datetime.now(UTC) - moment).total_seconds()
    words = f"in {duration(round(-seconds))}" if seconds < -1 else f"{duration(max(0, round(seconds)))} ago"
    exact = moment.astimezone(UTC)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        exact.isoformat(), f"{exact:%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC", words
    )


def visible(text: str | None) -> str:
    """Return untrusted text with invisible and direction-changing characters spelled out."""
    if text is None:
        return ""
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def json(value: Any) -> str:
    """Return a value as JSON: "7" is another value than 7."""
    return msgspec.json.encode(value).decode()


def several(count: int, word: str, plural: str | None = None) -> str:
    """Return a number with its noun."""
    return f"{count:,} {word if count == 1 else plural or word + 's'}"


MAX_SHOWN_CHARACTERS = 16_384
"""Characters of a payload that are shown at first."""

INDENT_SPACES = 2
MAX_INDENT_BYTES = 4 * 2**20
"""Bytes of spaces that a payload may be given at the most."""


class FormattedPayload(msgspec.Struct, frozen=True):
    """The shown part of a payload."""

    text: str
    left: int
    """Number of characters that are left out."""


def format_payload(raw: str, longest: int | None = MAX_SHOWN_CHARACTERS) -> FormattedPayload:
    """Return JSON with a line for each value; what is no JSON, or would become very long, as it is."""
    try:
        text = msgspec.json.format(raw, indent=INDENT_SPACES) if _stays_short(raw) else raw
    except (msgspec.DecodeError, RecursionError):
        text = raw
    if longest is None or len(text) <= longest:
        return FormattedPayload(text, 0)
    return FormattedPayload(text[:longest], len(text) - longest)


def _stays_short(raw: str) -> bool:
    """Return True if indenting adds few bytes: values that are nested deeply get a thousand spaces each."""
    encoded = raw.encode()
    containers = count_containers(encoded)
    lines = encoded.count(b",") + 2 * containers + 1
    if INDENT_SPACES * lines * containers <= MAX_INDENT_BYTES:
        return True
    return INDENT_SPACES * lines * json_depth(encoded) <= MAX_INDENT_BYTES


CONTENT_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
"""Static files, by how their names end."""


@cache
def environment() -> Environment:
    """Return the Jinja environment, with the console's filters."""
    made = Environment(
        loader=PackageLoader("milepost.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters = (number, rate, duration, ago, visible, several, json)
    made.filters |= {each.__name__: each for each in filters}
    made.globals |= {"sparkline": sparkline, "chart": chart}
    return made


def render(template: str, context: dict[str, Any]) -> str:
    """Return a template as HTML."""
    return environment().get_template(template).render(context)


@cache
def static_file(name: str) -> tuple[bytes, str] | None:
    """Return a static file and its type; None if there is none of this name."""
    kind = CONTENT_TYPES.get(name.rpartition(".")[2])
    folder = files("milepost.console") / "static"
    if kind is None or name not in {each.name for each in folder.iterdir()}:
        return None
    return (folder / name).read_bytes(), kind


@cache
def static_edition() -> str:
    """Return a digest of the static files: a browser keeps each for as long as it is the same."""
    digest = hashlib.sha256()
    for each in sorted((files("milepost.console") / "static").iterdir(), key=lambda each: each.name):
        digest.update(each.read_bytes())
    return digest.hexdigest()[:12]
