"""Where a request comes from: host names, this machine or another, and what trusted proxies say of it."""

import logging
from collections.abc import Collection
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from milepost.names import is_loopback
from milepost.server.http.asgi import Scope, client_address, header
from milepost.server.problems import NOT_LOCAL, WRONG_HOST, RequestRefused

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_FORWARDING_HEADERS = (
    b"forwarded",
    b"via",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-proto",
    b"x-real-ip",
)
_TOKENS_ADVICE = "start it with --tokens and make one with `milepost token make`"


def server_url(url: str) -> str:
    """A URL of a server as others are told it; ValueError if it is none."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0
    except ValueError:
        is_one = False
    if not is_one or parts.query or parts.fragment or parts.username or not url.isprintable() or " " in url:
        raise ValueError(f"a URL such as https://milepost-1.example:8480 is wanted, not {url!r}")
    return url.rstrip("/")


def is_local_request(scope: Scope) -> bool:
    """Return True if a request comes from this machine, and by the hand of nobody else."""
    return is_loopback(client_address(scope)) and not _is_forwarded(scope)


def _is_forwarded(scope: Scope) -> bool:
    return any(header(scope, name) is not None for name in _FORWARDING_HEADERS)


def check_host(scope: Scope, names: Collection[str]) -> None:
    """Refuses a request that was meant for another name: a page may have had its own name point here."""
    given = header(scope, b"host")
    if _hostname(given) not in names:
        raise RequestRefused(
            WRONG_HOST,
            f"{given!r} is not among the names of this server: start it with --allow-host if it should be"
            if given
            else "A Host header is wanted",
        )


def check_local(scope: Scope) -> None:
    """Refuses what does not come from this machine, or comes by the hand of somebody else."""
    client = client_address(scope)
    if client and not is_loopback(client):
        raise RequestRefused(NOT_LOCAL, f"You are not on its machine: {_TOKENS_ADVICE}")
    if _is_forwarded(scope):
        raise RequestRefused(
            NOT_LOCAL, f"This came through a proxy, so anybody may have sent it: {_TOKENS_ADVICE}"
        )
    origin = header(scope, b"origin")
    if origin is not None and origin_authority(origin) != header(scope, b"host"):
        raise RequestRefused(NOT_LOCAL, f"A page of another site sent this: {_TOKENS_ADVICE}")


def origin_authority(origin: str) -> str | None:
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


MAX_ADDRESS_CHARACTERS: Final = 64

Hop: TypeAlias = tuple[str, str]
"""The address that a proxy was asked from, and the scheme. Either may be empty: the proxy did not say."""
Hops: TypeAlias = list[Hop]
"""The hops of a request, the last one last."""

logger = logging.getLogger("milepost.server")


class TrustedProxies:
    """The proxies that are trusted to say where a request comes from.

    Anybody can send these headers, so those of others are not looked at.
    """

    def __init__(self, trusted: Collection[str]) -> None:
        """Check addresses and networks such as `10.0.0.0/8`; ValueError if one is none."""
        self._trusted: list[IPv4Network | IPv6Network] = [_parse_network(each) for each in trusted]
        self._has_warned = False

    def original_scope(self, scope: Scope) -> Scope:
        """Return a request as it came to a trusted proxy: from which client, and whether encrypted."""
        if not self._is_trusted(client_address(scope)):
            if _header_elements(scope, b"x-forwarded-proto"):
                self._warn(
                    scope,
                    "says how it was asked, and is not believed: cookies are not marked as secure. "
                    "If it is yours, name it with --trust-proxy, or trusted_proxies=[…]",
                )
            return scope
        origins = {self._origin(way) for way in (_forwarded_hops(scope), _x_forwarded_hops(scope)) if way}
        if len(origins) > 1:
            # A proxy that sets one of them may pass on the other as a client sent it.
            self._warn(
                scope,
                "says one thing in Forwarded and another in X-Forwarded-For and X-Forwarded-Proto: neither is "
                "believed. Have it remove what it does not set",
            )
            return scope
        for client, scheme in origins:
            if client:
                scope = {**scope, "client": (client[:MAX_ADDRESS_CHARACTERS], 0)}
            if scheme == "https":
                scope = {**scope, "scheme": "wss" if scope["type"] == "websocket" else "https"}
        return scope

    def _origin(self, way: Hops) -> Hop:
        """Return the last hop from an address that no trusted proxy has: each adds one at the end."""
        for address, scheme in reversed(way):
            if address and not self._is_trusted(address):
                return address, scheme
        return "", way[-1][1]

    def _is_trusted(self, address: str) -> bool:
        try:
            parsed = ip_address(address)
        except ValueError:
            return False
        parsed = getattr(parsed, "ipv4_mapped", None) or parsed
        return any(parsed in network for network in self._trusted)

    def _warn(self, scope: Scope, problem: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("a proxy at %s %s", client_address(scope) or "an unknown address", problem)


def _parse_network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError:
        raise ValueError(f"an address or a network such as 10.0.0.0/8 is wanted, not {text!r}") from None


def _header_elements(scope: Scope, name: bytes) -> list[str]:
    """Return the elements of a header, which may stand in several lines."""
    text = ",".join(value.decode("latin-1") for known, value in scope["headers"] if known == name)
    return [element.strip() for element in text.split(",")] if text else []


def _forwarded_hops(scope: Scope) -> Hops:
    elements = map(_forwarded_parameters, _header_elements(scope, b"forwarded"))
    return [(_without_port(each.get("for", "")), each.get("proto", "").lower()) for each in elements]


def _x_forwarded_hops(scope: Scope) -> Hops:
    hosts = [_without_port(each) for each in _header_elements(scope, b"x-forwarded-for")]
    schemes = [each.lower() for each in _header_elements(scope, b"x-forwarded-proto")]
    if len(schemes) != len(hosts):
        # Most proxies set only how the first or the last of them was asked.
        schemes = [schemes[-1] if schemes else ""] * max(len(hosts), 1)
        hosts = hosts or [""]
    return list(zip(hosts, schemes, strict=True)) if any(hosts) or any(schemes) else []


def _without_port(address: str) -> str:
    """Return an address without its port."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


def _forwarded_parameters(element: str) -> dict[str, str]:
    """Return the parameters of an element of a Forwarded header; addresses need no quoted separators."""
    pairs = (pair.partition("=") for pair in element.split(";"))
    return {name.strip().lower(): value.strip().strip('"') for name, _, value in pairs}
