"""The servers that a client knows: addresses, which one is asked first, and how long to wait between tries."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from time import monotonic
from typing import Final
from urllib.parse import SplitResult, quote, urlsplit

from milepost.names import is_loopback

FIRST_RETRY_SECONDS: Final = 0.05
"""Seconds before the second try."""
MAX_RETRY_SECONDS: Final = 5.0
"""Seconds between two tries at the most."""
RETRY_FACTOR: Final = 2.0


class Backoff:
    """Waits that grow, each shortened at random so that those who failed together do not come back together."""

    def __init__(self) -> None:
        self._next = FIRST_RETRY_SECONDS

    def wait(self) -> float:
        """Seconds to wait now; the next time they are more."""
        longest, self._next = self._next, min(MAX_RETRY_SECONDS, self._next * RETRY_FACTOR)
        return longest * random.uniform(0.5, 1)  # noqa: S311 - no secret

    def reset(self) -> None:
        """It has worked: the next wait is a short one."""
        self._next = FIRST_RETRY_SECONDS


LOCALHOST: Final = "localhost"
_WEBSOCKET_SCHEMES = {"http": "ws", "https": "wss"}


@dataclass(frozen=True)
class NodeAddress:
    """A server that can be asked: `https://host:8480`, or with a path where it is mounted in an application."""

    url: str
    """Without a slash at its end."""

    @classmethod
    def of(cls, url: str) -> "NodeAddress":
        """Checks an address; a `ValueError` says what is wanted."""
        parts = _split_url(url)
        if (
            parts is None
            or parts.scheme not in _WEBSOCKET_SCHEMES
            or not parts.hostname
            or parts.query
            or parts.fragment
        ):
            raise ValueError(
                f"url: an address such as https://host:8480 is wanted, not {_url_without_secrets(url)!r}"
            )
        if parts.username is not None or parts.password is not None:
            raise ValueError("url: give the token by token=…, and nothing before the host")
        return cls(f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}")

    @property
    def is_secure(self) -> bool:
        """Whether what is sent is encrypted."""
        return self.url.startswith("https:")

    @property
    def host(self) -> str:
        """The name or address of the machine; `localhost` for each name that this machine has for itself."""
        return canonical_host(urlsplit(self.url).hostname or "")

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return self.host == LOCALHOST

    def http(self, path: str) -> str:
        """Where a request goes."""
        return self.url + path

    def websocket(self, path: str) -> str:
        """Where a WebSocket goes."""
        scheme, _, rest = self.url.partition(":")
        return f"{_WEBSOCKET_SCHEMES[scheme]}:{rest}{path}"

    def __str__(self) -> str:
        return self.url


def canonical_host(host: str) -> str:
    """Return `localhost` for each address of the machine's own loopback, and any other host as it is."""
    return LOCALHOST if is_loopback(host) else host


def is_address(host: str) -> bool:
    """Return True if a host is an address and no name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def api_path(*segments: str) -> str:
    """A path of the API: each name is encoded, whatever is in it."""
    return "/v1/" + "/".join(_encode_segment(segment) for segment in segments)


def _encode_segment(segment: str) -> str:
    # Two of these would be taken for the folder that they name.
    encoded = quote(segment, safe="", errors="backslashreplace")
    return encoded.replace(".", "%2E") if encoded in (".", "..") else encoded


def _split_url(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except (ValueError, AttributeError, TypeError):
        return None
    return parts


def _url_without_secrets(url: object) -> str:
    """An address for a message: what may be a secret in it is left out."""
    text = str(url)
    return text.rpartition("@")[2][:100] if isinstance(url, str) else text[:100]


AVOIDED_NODE_SECONDS: Final = 5.0
"""Seconds for which a node that could not be reached comes last."""
_HOST_NAME = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9._-]*[a-z0-9])?")


class NodeList:
    """Addresses in the order in which they are asked: the one that answered last comes first."""

    def __init__(self, urls: Sequence[str], trust: Sequence[str] = ()) -> None:
        nodes = list(dict.fromkeys(map(NodeAddress.of, urls)))
        if not nodes:
            raise ValueError("url: an address such as https://host:8480 is wanted, or several")
        self._nodes = nodes
        self._trusted = {node.host for node in nodes}.union(map(_trusted_host, trust))
        self._failed_at: dict[NodeAddress, float] = {}

    def in_turn(self) -> list[NodeAddress]:
        """Each once, those that failed lately at the end."""
        avoided = self.avoided()
        return sorted(self._nodes, key=avoided.__contains__)

    def works(self, node: NodeAddress) -> None:
        """It answered: it is asked first from now on."""
        self._failed_at.pop(node, None)
        if node in self._nodes and self._nodes[0] is not node:
            self._nodes.remove(node)
            self._nodes.insert(0, node)

    def fails(self, node: NodeAddress) -> None:
        """It could not be reached, or cannot serve now."""
        self._failed_at[node] = monotonic()

    def avoided(self) -> set[NodeAddress]:
        """Those that failed lately, also such as are not on the list."""
        since = monotonic() - AVOIDED_NODE_SECONDS
        self._failed_at = {node: at for node, at in self._failed_at.items() if at > since}
        return set(self._failed_at)

    def may_follow(self, url: str) -> NodeAddress | None:
        """Return the node that another one named, or None if this client does not go there.

        The token goes only to hosts that the program named. What is encrypted now stays encrypted.
        """
        try:
            node = NodeAddress.of(url)
        except ValueError:
            return None
        encrypted = all(known.is_secure for known in self._nodes)
        return node if self._trusts(node.host) and (node.is_secure or not encrypted) else None

    def _trusts(self, host: str) -> bool:
        _, _, domain = host.partition(".")
        return host in self._trusted or f"*.{domain}" in self._trusted

    def __str__(self) -> str:
        return ", ".join(map(str, self._nodes))


def _trusted_host(name: str) -> str:
    """Check the name or address of a host, or `*.` and a domain for each host directly in it."""
    host = name.lower().strip("[]") if isinstance(name, str) else ""
    if _HOST_NAME.fullmatch(host) or is_address(host):
        return canonical_host(host)
    raise ValueError(
        f'trust: hosts such as "milepost-2.internal" or "*.internal" are wanted, without a port, not {name!r}'
    )
