"""Requests that come through a proxy: who made them, and whether they were encrypted, as a trusted proxy says."""

import logging
from collections.abc import Collection, Iterator
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final

from milepost.server.asgi import Scope, client_of

MAX_ADDRESS_CHARACTERS: Final = 64

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
            self._warn(scope)
            return scope
        given = {name: value.decode("latin-1") for name, value in scope["headers"] if name in _HEADERS}
        client, scheme = self._client(given), _scheme(given)
        if client:
            scope = {**scope, "client": (client[:MAX_ADDRESS_CHARACTERS], 0)}
        if scheme == "https":
            scope = {**scope, "scheme": "wss" if scope["type"] == "websocket" else "https"}
        return scope

    def _client(self, given: dict[bytes, str]) -> str | None:
        """Return the last address that no trusted proxy has: each adds the one it was asked from at the end."""
        for address in _addresses(given):
            if not self._trusts(address):
                return address
        return None

    def _trusts(self, address: str) -> bool:
        try:
            parsed = ip_address(address)
        except ValueError:
            return False
        parsed = getattr(parsed, "ipv4_mapped", None) or parsed
        return any(parsed in network for network in self._trusted)

    def _warn(self, scope: Scope) -> None:
        if not self._has_warned and any(name == b"x-forwarded-proto" for name, _ in scope["headers"]):
            self._has_warned = True
            logger.warning(
                "a proxy at %s says how it was asked, and is not believed: cookies are not marked as secure. "
                "If it is yours, name it with --trust-proxy, or trusted_proxies=[…]",
                client_of(scope) or "an unknown address",
            )


_HEADERS: Final = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-proto"})


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError:
        raise ValueError(f"an address or a network such as 10.0.0.0/8 is wanted, not {text!r}") from None


def _scheme(given: dict[bytes, str]) -> str:
    """Return how the nearest proxy was asked, in lower case."""
    if b"forwarded" in given:
        return _elements(given[b"forwarded"])[-1].get("proto", "").lower()
    return given.get(b"x-forwarded-proto", "").rpartition(",")[2].strip().lower()


def _addresses(given: dict[bytes, str]) -> Iterator[str]:
    """Yield the addresses that a request came by, the last first, without their ports."""
    if b"forwarded" in given:
        found = [element.get("for", "") for element in _elements(given[b"forwarded"])]
    else:
        found = given.get(b"x-forwarded-for", "").split(",")
    for each in reversed(found):
        host = each.strip()
        if host.startswith("["):
            host = host[1:].partition("]")[0]
        elif host.count(":") == 1:
            host = host.partition(":")[0]
        if host:
            yield host


def _elements(forwarded: str) -> list[dict[str, str]]:
    """Return the parameters of each element of a Forwarded header; addresses need no quoted separators."""
    return [
        {
            name.strip().lower(): value.strip().strip('"')
            for name, _, value in (pair.partition("=") for pair in element.split(";"))
        }
        for element in forwarded.split(",")
    ]
