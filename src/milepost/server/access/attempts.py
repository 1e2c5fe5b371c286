"""Failed attempts to get in, by address: who fails too often is not listened to for a while."""

from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network, ip_address
from time import monotonic

MOST = 10
"""Failures of an address within `WHILE`."""
WHILE = 60.0
"""Seconds."""
ADDRESSES = 10_000
"""How many are remembered; the ones that failed longest ago are forgotten first."""


class Attempts:
    """Counts failures. Whoever presents a token that is known is not concerned, wherever it comes from."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def failed(self, address: str) -> None:
        """One more."""
        network = _network(address)
        self._failures[network] = [*self._recent(network), self._now()][-MOST:]
        self._failures.move_to_end(network)
        if len(self._failures) > ADDRESSES:
            self._failures.popitem(last=False)

    def wait(self, address: str) -> float:
        """Seconds until this address is listened to again; 0.0: it is."""
        recent = self._recent(_network(address))
        return recent[0] + WHILE - self._now() if len(recent) >= MOST else 0.0

    def _recent(self, network: str) -> list[float]:
        since = self._now() - WHILE
        return [at for at in self._failures.get(network, ()) if at > since]


def _network(address: str) -> str:
    """Whoever has an address of IPv6 has a whole network of them."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Network((parsed, 64), strict=False))
