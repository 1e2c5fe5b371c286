"""Counters of one server: requests, connections, deliveries and settlements of its consumers."""

import asyncio
from collections import Counter
from typing import Final, TypeAlias

from milepost.server.websocket.frames import SettleFrame
from milepost.wire.frames import SettledFrame

COUNTED_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER_LABEL: Final = "other"
"""Any other method, and a path that leads nowhere: whoever makes some up makes no new figures."""

SubscriptionAddress: TypeAlias = tuple[str, str]
"""Group and name of a subscription."""


class ServerTraffic:
    """Figures of one server, from its start on."""

    def __init__(self) -> None:
        self.connections = 0
        """Open ones that are no WebSockets, where `milepost serve` has them."""
        self.silent: dict[asyncio.Transport, None] = {}
        """Those that no request is under way on, the one first that has been silent for longest."""
        self._unread_answers: dict[asyncio.Transport, int] = {}
        """Bytes of answers that clients do not take as fast as they come, the one first that waits for longest."""
        self.requests: Counter[tuple[str, str, int]] = Counter()
        """By method, route and status."""
        self.sent: Counter[SubscriptionAddress] = Counter()
        """Deliveries that went to consumers."""
        self.settled: Counter[tuple[str, str, str]] = Counter()
        """Deliveries that consumers settled, by subscription and outcome; `refused`: it was too late."""
        self.ended: Counter[str] = Counter()
        """Consumers whose connections have ended, by reason."""

    def begin_unread_answer(self, transport: asyncio.Transport, max_bytes: int) -> None:
        """An answer waits for its client. If all of them are more than this, those end that wait for longest."""
        self._unread_answers[transport] = transport.get_write_buffer_size()
        while sum(self._unread_answers.values()) > max_bytes and len(self._unread_answers) > 1:
            longest = next(iter(self._unread_answers))
            del self._unread_answers[longest]
            longest.abort()

    def end_unread_answer(self, transport: asyncio.Transport) -> None:
        """It was taken, or its connection is over."""
        self._unread_answers.pop(transport, None)

    def answered(self, method: str, route: str | None, status: int) -> None:
        """A request has its answer."""
        self.requests[method if method in COUNTED_METHODS else OTHER_LABEL, route or OTHER_LABEL, status] += 1

    def settles(self, address: SubscriptionAddress, asked: SettleFrame, answer: SettledFrame) -> None:
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
