"""The nodes that a client knows: which one it asks, and which ones it leaves alone for a while."""

import re
from collections.abc import Sequence
from time import monotonic
from typing import Final

from milepost.client.node import Node, canonical_host, is_address

AVOIDED: Final = 5.0
"""Seconds for which a node that could not be reached comes last."""
_NAME = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9._-]*[a-z0-9])?")


class Nodes:
    """Addresses in the order in which they are asked: the one that answered last comes first."""

    def __init__(self, urls: Sequence[str], trust: Sequence[str] = ()) -> None:
        nodes = list(dict.fromkeys(map(Node.of, urls)))
        if not nodes:
            raise ValueError("url: an address such as https://host:8480 is wanted, or several")
        self._nodes = nodes
        self._trusted = {node.host for node in nodes}.union(map(_host, trust))
        self._failed_at: dict[Node, float] = {}

    def in_turn(self) -> list[Node]:
        """Each once, those that failed lately at the end."""
        avoided = self.avoided()
        return sorted(self._nodes, key=avoided.__contains__)

    def works(self, node: Node) -> None:
        """It answered: it is asked first from now on."""
        self._failed_at.pop(node, None)
        if node in self._nodes and self._nodes[0] is not node:
            self._nodes.remove(node)
            self._nodes.insert(0, node)

    def fails(self, node: Node) -> None:
        """It could not be reached, or cannot serve now."""
        self._failed_at[node] = monotonic()

    def avoided(self) -> set[Node]:
        """Those that failed lately, also such as are not on the list."""
        since = monotonic() - AVOIDED
        self._failed_at = {node: at for node, at in self._failed_at.items() if at > since}
        return set(self._failed_at)

    def may_follow(self, url: str) -> Node | None:
        """Return the node that another one named, or None if this client does not go there.

        The token goes only to hosts that the program named. What is encrypted now stays encrypted.
        """
        try:
            node = Node.of(url)
        except ValueError:
            return None
        encrypted = all(known.is_secure for known in self._nodes)
        return node if self._trusts(node.host) and (node.is_secure or not encrypted) else None

    def _trusts(self, host: str) -> bool:
        _, _, domain = host.partition(".")
        return host in self._trusted or f"*.{domain}" in self._trusted

    def __str__(self) -> str:
        return ", ".join(map(str, self._nodes))


def _host(name: str) -> str:
    """Check the name or address of a host, or `*.` and a domain for each host directly in it."""
    host = name.lower().strip("[]") if isinstance(name, str) else ""
    if _NAME.fullmatch(host) or is_address(host):
        return canonical_host(host)
    raise ValueError(
        f'trust: hosts such as "milepost-2.internal" or "*.internal" are wanted, without a port, not {name!r}'
    )
