"""An address to listen on, as a person writes it."""

from dataclasses import dataclass

from milepost.cli.ending import Refusal

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Address:
    """Where to listen. Without a host it is every interface, with port 0 any port that is free."""

    host: str | None
    port: int

    @classmethod
    def of(cls, text: str) -> "Address":
        """`8481` is this machine alone, `:8481` every interface; `127.0.0.1:8481` and `[::1]:8481` name one."""
        host, colon, port = text.rpartition(":")
        if not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise _refused(text)
        if not colon:
            return cls(LOOPBACK, int(port))
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host or "[" in host:
            raise _refused(text)
        return cls(host or None, int(port))

    def __str__(self) -> str:
        host = self.host or "0.0.0.0"  # noqa: S104 - it is what was asked for
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


def _refused(text: str) -> Refusal:
    return Refusal(
        f"--health {text}: an address is wanted: 8481 for this machine alone, :8481 for every interface, "
        "127.0.0.1:8481 or [::1]:8481 for one"
    )
