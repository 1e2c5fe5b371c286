"""The client: the methods of a `Milepost`, over the network, from a server or several nodes of one.

`milepost.connect(url)` gives one. It needs `pip install "milepost[client]"`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from milepost.client.client import Client
    from milepost.log.codec import MessageDeclarations

__all__ = ["connect"]

MISSING = 'the client needs more packages: pip install "milepost[client]"'
PATIENCE_SECONDS = 10.0
"""Seconds for which a call is tried again."""
MAX_ANSWER_BYTES = 64 * 2**20
"""Bytes of one answer, event or frame."""


def connect(
    url: str | Sequence[str],
    *,
    token: str | None = None,
    group: str = "default",
    messages: "MessageDeclarations | None" = None,
    ca: str | None = None,
    patience: float = PATIENCE_SECONDS,
    max_answer_bytes: int = MAX_ANSWER_BYTES,
    trust: Sequence[str] = (),
) -> "Client":
    """A client of a server: `async with milepost.connect("http://localhost:8480") as client`, or `client.sync`.

    Nothing is sent before one of its methods is called.

    Args:
        url: The address of a server, or of several nodes on one database: the first that answers is asked.
        token: What `milepost token make` printed; a server on its own machine may ask for none.
        group: What the name of a subscription alone means. Defaults to "default".
        messages: A `Milepost`, or another client, whose classes of messages this one knows too.
        ca: A file with the certificates to trust, instead of those that everybody trusts.
        patience: For how many seconds a call is tried again, at one node after the other, while none can serve it.
            Defaults to 10; 0 tries each once.
        max_answer_bytes: The most that is taken of one answer. Defaults to 64 MiB.
        trust: Hosts that a node may send this client to, with its token, beside those of `url`: names of hosts, or
            "*.internal" for each host of that domain. Defaults to none.
    """
    try:
        from milepost.client.client import Client
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("milepost"):
            raise
        raise ImportError(MISSING) from error
    return Client(
        [url] if isinstance(url, str) else list(url),
        token=token,
        group=group,
        messages=messages,
        ca=ca,
        patience=patience,
        max_answer_bytes=max_answer_bytes,
        trust=[trust] if isinstance(trust, str) else list(trust),
    )
