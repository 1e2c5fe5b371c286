"""What was claimed in one call, with its messages."""

from collections.abc import Mapping
from typing import Any

import msgspec

from milepost.engine.pulling.pulled import PulledDelivery
from milepost.engine.pulling.stock import Found
from milepost.engine.unknown import unknown_subscription
from milepost.errors import MilepostError
from milepost.log.connections import Executor
from milepost.log.message import Message
from milepost.log.reader import Reader
from milepost.progress.pulling import Claim, NotPulled, PostgresPulling, Reply, Request, Settlement, Taken

HOW_TO_CREATE = ': create it with mp.create_subscription(…, tracking="all")'
GONE = "its message is no longer in the log"


class Claims:
    """Claims deliveries until there is no room left; on whatever connection."""

    def __init__(self, pulling: PostgresPulling, executor: Executor, request: Request, *, own: bool) -> None:
        self._pulling = pulling
        self._executor = executor
        self._request = request
        self._own = own
        self._deliveries: list[PulledDelivery] = []
        self._without_message: list[tuple[Taken, Reply]] = []
        self._size = 0
        self._unread = False

    @property
    def more(self) -> bool:
        """Whether there may be more: the limit was reached, or the log of this database has messages beyond."""
        return self._unread or not self.room

    @property
    def count(self) -> int:
        """How many have been claimed."""
        return len(self._deliveries) + len(self._without_message)

    @property
    def room(self) -> int:
        """How many more there may be."""
        return self._request.limit - self.count if self._size < self._request.bytes else 0

    async def pull(self, found: Found | None = None) -> Reply:
        """One statement: what is ready, and then what a part of the log comes to."""
        request = msgspec.structs.replace(self._request, limit=self.room, bytes=self._request.bytes - self._size)
        scanned = None if found is None else found.scanned
        told = await self._pulling.pull(self._executor, request, own=self._own, scanned=scanned)
        if told is None:
            known = await self._pulling.addresses(self._executor)
            raise unknown_subscription(self._request.group, self._request.name, known, otherwise=HOW_TO_CREATE)
        reply = _accepted(told, self._request)
        self._size += reply.size
        self._unread = reply.unread
        self._without_message += [(taken, reply) for taken in reply.ready]
        if found is not None and reply.converted:
            replayed = frozenset(reply.replayed or ())
            self._deliveries += [
                _delivery(found.messages[position], reply, 1, position in replayed) for position in reply.converted
            ]
        return reply

    async def deliveries(self, reader: Reader, executor: Executor) -> list[PulledDelivery]:
        """All of them, by position, with their messages: `executor` is where the log is.

        One whose message is no longer in the log is parked.
        """
        if self._without_message:
            positions = [taken.position for taken, _ in self._without_message]
            messages = {message.position: message for message in await reader.messages_at(executor, positions)}
            await self._park_lost(messages)
            self._deliveries += [
                _delivery(messages[taken.position], reply, taken.attempt, taken.replay)
                for taken, reply in self._without_message
                if taken.position in messages
            ]
            self._without_message.clear()
        return sorted(self._deliveries, key=_position)

    async def _park_lost(self, messages: Mapping[int, Message[Any]]) -> None:
        lost = [
            Settlement(Claim(reply.id, taken.position, reply.claim), "park", GONE)
            for taken, reply in self._without_message
            if taken.position not in messages
        ]
        if lost:
            await self._pulling.settle(self._executor, lost)


def _accepted(told: Reply | NotPulled, request: Request) -> Reply:
    address = f"{request.group}/{request.name}"
    match told:
        case NotPulled(in_code=True):
            raise MilepostError(
                f"{address} has handlers in a program, and nothing of it can be pulled: create another "
                'subscription, with tracking="all"'
            )
        case NotPulled():
            raise MilepostError(
                f'{address} is for consumers: use mp.consumer("{request.name}"), or create another subscription, '
                'with tracking="all"'
            )
    return told


def _delivery(message: Message[Any], reply: Reply, attempt: int, replay: bool) -> PulledDelivery:
    claim = Claim(reply.id, message.position, reply.claim)
    return PulledDelivery(message=message, attempt=attempt, replay=replay, expires=reply.expires, claim=claim)


def _position(delivery: PulledDelivery) -> int:
    return delivery.claim.position
