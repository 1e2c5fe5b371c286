"""Names within a path: any name that can be stored, a slash in it included."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from milepost.server.asgi import Scope
from milepost.server.problems import INVALID, Refused


def routed(scope: Scope) -> str:
    """The path as it is to be routed: decoded, but for slashes within a segment, which stay spelled `%2F`.

    What an application put before it that this one is mounted in is cut off.
    """
    raw, path = _raw(scope), str(scope["path"])
    if raw is not None:
        path = "/".join(_escaped(_decoded(segment)) for segment in raw.split("/"))
    root = str(scope.get("root_path", "")).rstrip("/")
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def names(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a routed path as they were meant."""
    return {
        name: value.replace("%2F", "/").replace("%25", "%") if isinstance(value, str) else value
        for name, value in parameters.items()
    }


def check_text(encoded: bytes, what: str) -> None:
    """Refuses an address that is not text in UTF-8, or has what no text in PostgreSQL can have."""
    if "\0" in _decoded(encoded.decode("latin-1"), what):
        raise Refused(INVALID, f"{what}: a NUL character cannot be stored or looked for", field=what)


def _raw(scope: Scope) -> str | None:
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


def _decoded(text: str, what: str = "path") -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise Refused(INVALID, f"{what}: text in UTF-8 is wanted", field=what) from None


def _escaped(segment: str) -> str:
    return segment.replace("%", "%25").replace("/", "%2F")
