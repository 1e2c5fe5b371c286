"""The parts of a page that follow what happens: each is collected while the page is drawn."""

import re
from collections.abc import Callable, Mapping

from markupsafe import Markup, escape

_TIMES = re.compile(r"(<time[^>]*>)[^<]*")


class Regions:
    """What `live` in a template is. What was drawn before of the same page and snapshot is not drawn again."""

    def __init__(self, known: Mapping[str, str] | None = None) -> None:
        self.drawn: dict[str, str] = {}
        self._known = known or {}

    def __call__(self, id: str, *, tag: str = "div", caller: Callable[[], Markup], **attributes: str) -> Markup:
        """A region of the page with an id of its own; `class_` and others become attributes of its tag."""
        html = self._known.get(id)
        if html is None:
            html = str(caller())
        self.drawn[id] = html
        others = "".join(
            f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"' for name, value in attributes.items()
        )
        # The tag and the names of attributes are a template's, the content was drawn by one.
        return Markup(f'<{tag} id="{escape(id)}" data-live{others}>{html}</{tag}>')  # noqa: S704


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """What is to be drawn again; that time has gone on is no change, a script sees to it."""
    return {name: html for name, html in now.items() if _timeless(before.get(name, "")) != _timeless(html)}


def _timeless(html: str) -> str:
    return _TIMES.sub(r"\1", html)
