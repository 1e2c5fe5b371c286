"""What this server has to do, counted: requests, connections, and what consumers get and settle."""

import asyncio
from collections import Counter
from typing import Final, TypeAlias

from milepost.server.websocket.incoming import Settle
from milepost.server.websocket.outgoing import Settled

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER: Final = "other"
"""Any other method, and a path that leads nowhere: whoever makes some up makes no new figures."""

Address: TypeAlias = tuple[str, str]
"""Group and name of a subscription."""


class Traffic:
    """Figures of one server, from its start on."""

    def __init__(self) -> None:
        self.connections = 0
        """Open ones that are no WebSockets, where `milepost serve` has them."""
        self.silent: dict[asyncio.Transport, None] = {}
        """Those that no request is under way on, the one first that has been silent for longest."""
        self._untaken: dict[asyncio.Transport, int] = {}
        """Bytes of answers that clients do not take as fast as they come, the one first that waits for longest."""
        self.requests: Counter[tuple[str, str, int]] = Counter()
        """By method, route and status."""
        self.sent: Counter[Address] = Counter()
        """Deliveries that went to consumers."""
        self.settled: Counter[tuple[str, str, str]] = Counter()
        """Deliveries that consumers settled, by subscription and outcome; `refused`: it was too late."""
        self.ended: Counter[str] = Counter()
        """Consumers whose connections have ended, by reason."""

    def begin_untaken(self, transport: asyncio.Transport, max_bytes: int) -> None:
        """An answer waits for its client. If all of them are more than this, those end that wait for longest."""
        self._untaken[transport] = transport.get_write_buffer_size()
        while sum(self._untaken.values()) > max_bytes and len(self._untaken) > 1:
            longest = next(iter(self._untaken))
            del self._untaken[longest]
            longest.abort()

    def end_untaken(self, transport: asyncio.Transport) -> None:
        """It was taken, or its connection is over."""
        self._untaken.pop(transport, None)

    def answered(self, method: str, route: str | None, status: int) -> None:
        """A request has its answer."""
        self.requests[method if method in METHODS else OTHER, route or OTHER, status] += 1

    def settles(self, address: Address, asked: Settle, answer: Settled) -> None:
        """A consumer has settled deliveries."""
        moved = set(answer.moved)
        asked_ids = {
            "ack": asked.ack,
            "retry": [each.id for each in asked.retry],
            "park": [each.id for each in asked.park],
            "skip": [each.id for each in asked.skip],
            "back": asked.back,
        }
        for outcome, ids in asked_ids.items():
            if ids:
                self.settled[*address, outcome] += len(moved.intersection(ids))
        if answer.refused:
            self.settled[*address, "refused"] += len(answer.refused)
