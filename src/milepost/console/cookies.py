"""The cookies of the console: what a browser sends, and what it is told to keep."""

from collections.abc import Mapping

from milepost.server.asgi import Scope, header

SESSION = "milepost_session"
"""Who it is, where a token is asked for."""
VISIT = "milepost_visit"
"""Which browser it is, for forms of somebody who is not logged in."""
FLASH = "milepost_flash"
"""What was done, to be said on the next page."""
THEME = "milepost_theme"
"""`light` or `dark`, if the reader chose; the page itself writes it."""


def cookies_of(scope: Scope) -> Mapping[str, str]:
    """Return the cookies that the browser sent: the value of each name, as it was sent.

    The cookies of the console need no unquoting. The parser of the standard library unquotes, in a time that grows
    with the square of what a stranger sent.
    """
    cookies = {}
    for cookie in (header(scope, b"cookie") or "").split(";"):
        name, equals, value = cookie.partition("=")
        if equals:
            cookies[name.strip()] = value.strip()
    return cookies


def kept(scope: Scope, name: str, value: str, *, path: str, seconds: int | None = None) -> tuple[bytes, bytes]:
    """The header that has a browser keep a cookie: out of reach of scripts and of other sites."""
    parts = [f"{name}={value}", f"Path={path}", "HttpOnly", "SameSite=Strict"]
    if seconds is not None:
        parts.append(f"Max-Age={seconds}")
    if scope.get("scheme") == "https":
        parts.append("Secure")
    return b"set-cookie", "; ".join(parts).encode("latin-1")


def forgotten(scope: Scope, name: str, *, path: str) -> tuple[bytes, bytes]:
    """The header that has a browser forget one."""
    return kept(scope, name, "", path=path, seconds=0)
