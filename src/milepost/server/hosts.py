"""From where a server that asks for no token may be asked: from this machine, and not by a web page."""

from collections.abc import Collection
from urllib.parse import urlsplit

from milepost.names import is_loopback
from milepost.server.asgi import Scope, client_of, header
from milepost.server.problems import NOT_LOCAL, WRONG_HOST, Refused

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_FORWARDED = (
    b"forwarded",
    b"via",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-proto",
    b"x-real-ip",
)
_TOKENS = "start it with --tokens and make one with `milepost token make`"


def address_of(url: str) -> str:
    """A URL of a server as others are told it; ValueError if it is none."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0
    except ValueError:
        is_one = False
    if not is_one or parts.query or parts.fragment or parts.username or not url.isprintable() or " " in url:
        raise ValueError(f"a URL such as https://milepost-1.example:8480 is wanted, not {url!r}")
    return url.rstrip("/")


def is_local(scope: Scope) -> bool:
    """Return True if a request comes from this machine, and by the hand of nobody else."""
    return is_loopback(client_of(scope)) and not _is_forwarded(scope)


def _is_forwarded(scope: Scope) -> bool:
    return any(header(scope, name) is not None for name in _FORWARDED)


def check_host(scope: Scope, names: Collection[str]) -> None:
    """Refuses a request that was meant for another name: a page may have had its own name point here."""
    given = header(scope, b"host")
    if _hostname(given) not in names:
        raise Refused(
            WRONG_HOST,
            f"{given!r} is not among the names of this server: start it with --allow-host if it should be"
            if given
            else "A Host header is wanted",
        )


def check_local(scope: Scope) -> None:
    """Refuses what does not come from this machine, or comes by the hand of somebody else."""
    client = client_of(scope)
    if client and not is_loopback(client):
        raise Refused(NOT_LOCAL, f"You are not on its machine: {_TOKENS}")
    if _is_forwarded(scope):
        raise Refused(NOT_LOCAL, f"This came through a proxy, so anybody may have sent it: {_TOKENS}")
    origin = header(scope, b"origin")
    if origin is not None and authority_of(origin) != header(scope, b"host"):
        raise Refused(NOT_LOCAL, f"A page of another site sent this: {_TOKENS}")


def authority_of(origin: str) -> str | None:
    """What of an Origin header is the same as the Host header of its own site."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _hostname(host: str | None) -> str | None:
    """The name or address in a Host header, without its port; None if anything else is in it."""
    if not host or any(character in host for character in "@/?#"):
        return None
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
