"""The address of a node, and what is asked of it."""

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import SplitResult, quote, urlsplit

from milepost.names import is_loopback

LOCALHOST: Final = "localhost"
_SOCKETS = {"http": "ws", "https": "wss"}


@dataclass(frozen=True)
class Node:
    """A server that can be asked: `https://host:8480`, or with a path where it is mounted in an application."""

    url: str
    """Without a slash at its end."""

    @classmethod
    def of(cls, url: str) -> "Node":
        """Checks an address; a `ValueError` says what is wanted."""
        parts = _parts(url)
        if parts is None or parts.scheme not in _SOCKETS or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"url: an address such as https://host:8480 is wanted, not {_shown(url)!r}")
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
        return f"{_SOCKETS[scheme]}:{rest}{path}"

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


def path(*segments: str) -> str:
    """A path of the API: each name is encoded, whatever is in it."""
    return "/v1/" + "/".join(_encoded(segment) for segment in segments)


def _encoded(segment: str) -> str:
    # Two of these would be taken for the folder that they name.
    encoded = quote(segment, safe="", errors="backslashreplace")
    return encoded.replace(".", "%2E") if encoded in (".", "..") else encoded


def _parts(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except (ValueError, AttributeError, TypeError):
        return None
    return parts


def _shown(url: object) -> str:
    """An address for a message: what may be a secret in it is left out."""
    text = str(url)
    return text.rpartition("@")[2][:100] if isinstance(url, str) else text[:100]
