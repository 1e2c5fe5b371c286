"""Templates: loaded once, everything escaped, a name that is not there is an error."""

import hashlib
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from milepost.console import words
from milepost.console.charts import chart, sparkline

KINDS = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
"""Static files, by how their names end."""


@cache
def environment() -> Environment:
    """With the filters of this console."""
    made = Environment(
        loader=PackageLoader("milepost.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    for name in ("number", "rate", "duration", "ago", "visible", "several", "json"):
        made.filters[name] = getattr(words, name)
    made.globals |= {"sparkline": sparkline, "chart": chart}
    return made


def rendered(template: str, context: dict[str, Any]) -> str:
    """A template as HTML."""
    return environment().get_template(template).render(context)


@cache
def static(name: str) -> tuple[bytes, str] | None:
    """A static file and its type, if there is one of this name."""
    kind = KINDS.get(name.rpartition(".")[2])
    folder = files("milepost.console") / "static"
    if kind is None or name not in {each.name for each in folder.iterdir()}:
        return None
    return (folder / name).read_bytes(), kind


@cache
def edition() -> str:
    """Changes with any static file: a browser keeps each for as long as this is the same."""
    digest = hashlib.sha256()
    for each in sorted((files("milepost.console") / "static").iterdir(), key=lambda each: each.name):
        digest.update(each.read_bytes())
    return digest.hexdigest()[:12]
