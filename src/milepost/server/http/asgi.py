"""ASGI types, and what the server reads and writes of them itself: headers, client address, path."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeAlias
from urllib.parse import unquote

from milepost.server.problems import INVALID, RequestRefused

Scope: TypeAlias = MutableMapping[str, Any]
Event: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


def header(scope: Scope, name: bytes) -> str | None:
    """The value of a header; None if the request has none of this name."""
    for known, value in scope["headers"]:
        if known == name:
            return str(value.decode("latin-1"))
    return None


async def wait_until_client_left(receive: Receive) -> None:
    """Returns when whoever made a request has gone, or has the answer."""
    while (await receive())["type"] != "http.disconnect":
        pass


def client_address(scope: Scope) -> str:
    """The address that a request comes from; empty where that is not known, as on a Unix socket."""
    client = scope.get("client")
    return client[0] if client else ""


SECURITY_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"cache-control": b"no-store",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
}
"""What every answer has, unless it says otherwise itself."""


def routed_path(scope: Scope) -> str:
    """The path as it is to be routed: decoded, but for slashes within a segment, which stay spelled `%2F`.

    What an application put before it that this one is mounted in is cut off.
    """
    raw, path = _raw_path(scope), str(scope["path"])
    if raw is not None:
        path = "/".join(_escape_segment(_decode_segment(segment)) for segment in raw.split("/"))
    root = str(scope.get("root_path", "")).rstrip("/")
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def decode_path_names(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a routed path as they were meant."""
    return {
        name: value.replace("%2F", "/").replace("%25", "%") if isinstance(value, str) else value
        for name, value in parameters.items()
    }


def check_address_text(encoded: bytes, what: str) -> None:
    """Refuses an address that is not text in UTF-8, or has what no text in PostgreSQL can have."""
    if "\0" in _decode_segment(encoded.decode("latin-1"), what):
        raise RequestRefused(INVALID, f"{what}: a NUL character cannot be stored or looked for", field=what)


def _raw_path(scope: Scope) -> str | None:
    """The part of the encoded path that `path` is the decoded form of: a mount may have cut its beginning off."""
    raw, path = scope.get("raw_path"), scope["path"]
    if raw is None:
        return None
    text = raw.decode("latin-1")
    decoded = unquote(text)
    if not decoded.endswith(path):
        return None
    prefix = decoded[: len(decoded) - len(path)]
    return text[len(prefix) :] if text.startswith(prefix) else None


def _decode_segment(text: str, what: str = "path") -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise RequestRefused(INVALID, f"{what}: text in UTF-8 is wanted", field=what) from None


def _escape_segment(segment: str) -> str:
    return segment.replace("%", "%25").replace("/", "%2F")
