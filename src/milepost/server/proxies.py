"""Requests that come through a proxy: who made them, and whether they were encrypted, as a trusted proxy says."""

import logging
from collections.abc import Collection
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final, TypeAlias

from milepost.server.asgi import Scope, client_of

MAX_ADDRESS_CHARACTERS: Final = 64

Hop: TypeAlias = tuple[str, str]
"""The address that a proxy was asked from, and the scheme. Either may be empty: the proxy did not say."""
Way: TypeAlias = list[Hop]
"""The hops of a request, the last one last."""

logger = logging.getLogger("milepost.server")


class Proxies:
    """The proxies that are trusted to say where a request comes from.

    Anybody can send these headers, so those of others are not looked at.
    """

    def __init__(self, trusted: Collection[str]) -> None:
        """Check addresses and networks such as `10.0.0.0/8`; ValueError if one is none."""
        self._trusted: list[IPv4Network | IPv6Network] = [_network(each) for each in trusted]
        self._has_warned = False

    def as_sent(self, scope: Scope) -> Scope:
        """Return a request as it came to a trusted proxy: from which client, and whether encrypted."""
        if not self._trusts(client_of(scope)):
            if _joined(scope, b"x-forwarded-proto"):
                self._warn(
                    scope,
                    "says how it was asked, and is not believed: cookies are not marked as secure. "
                    "If it is yours, name it with --trust-proxy, or trusted_proxies=[…]",
                )
            return scope
        origins = {self._origin(way) for way in (_forwarded(scope), _x_forwarded(scope)) if way}
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

    def _origin(self, way: Way) -> Hop:
        """Return the last hop from an address that no trusted proxy has: each adds one at the end."""
        for address, scheme in reversed(way):
            if address and not self._trusts(address):
                return address, scheme
        return "", way[-1][1]

    def _trusts(self, address: str) -> bool:
        try:
            parsed = ip_address(address)
        except ValueError:
            return False
        parsed = getattr(parsed, "ipv4_mapped", None) or parsed
        return any(parsed in network for network in self._trusted)

    def _warn(self, scope: Scope, problem: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("a proxy at %s %s", client_of(scope) or "an unknown address", problem)


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError:
        raise ValueError(f"an address or a network such as 10.0.0.0/8 is wanted, not {text!r}") from None


def _joined(scope: Scope, name: bytes) -> list[str]:
    """Return the elements of a header, which may stand in several lines."""
    text = ",".join(value.decode("latin-1") for known, value in scope["headers"] if known == name)
    return [element.strip() for element in text.split(",")] if text else []


def _forwarded(scope: Scope) -> Way:
    elements = map(_parameters, _joined(scope, b"forwarded"))
    return [(_host(each.get("for", "")), each.get("proto", "").lower()) for each in elements]


def _x_forwarded(scope: Scope) -> Way:
    hosts = [_host(each) for each in _joined(scope, b"x-forwarded-for")]
    schemes = [each.lower() for each in _joined(scope, b"x-forwarded-proto")]
    if len(schemes) != len(hosts):
        # Most proxies set only how the first or the last of them was asked.
        schemes = [schemes[-1] if schemes else ""] * max(len(hosts), 1)
        hosts = hosts or [""]
    return list(zip(hosts, schemes, strict=True)) if any(hosts) or any(schemes) else []


def _host(address: str) -> str:
    """Return an address without its port."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


def _parameters(element: str) -> dict[str, str]:
    """Return the parameters of an element of a Forwarded header; addresses need no quoted separators."""
    pairs = (pair.partition("=") for pair in element.split(";"))
    return {name.strip().lower(): value.strip().strip('"') for name, _, value in pairs}
