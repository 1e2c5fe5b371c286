"""The nodes that a client knows: which one it asks, and which ones it leaves alone for a while."""

from collections.abc import Sequence
from time import monotonic
from typing import Final

from milepost.client.node import Node

AVOIDED: Final = 5.0
"""Seconds for which a node that could not be reached comes last."""


class Nodes:
    """Addresses in the order in which they are asked: the one that answered last comes first."""

    def __init__(self, urls: Sequence[str]) -> None:
        nodes = list(dict.fromkeys(map(Node.of, urls)))
        if not nodes:
            raise ValueError("url: an address such as https://host:8480 is wanted, or several")
        self._nodes = nodes
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
        """A node that another one named; None: it is no address, or what is encrypted now would not be there."""
        try:
            node = Node.of(url)
        except ValueError:
            return None
        encrypted = all(known.is_secure for known in self._nodes)
        return node if node.is_secure or not encrypted else None

    def __str__(self) -> str:
        return ", ".join(map(str, self._nodes))
