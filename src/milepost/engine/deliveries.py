"""Deliveries of a subscription with their messages, and what a person decides about them."""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec

from milepost.engine.info import Overview
from milepost.engine.place import Place
from milepost.errors import MilepostError
from milepost.log.message import Message
from milepost.log.reader import PAGE_BYTES
from milepost.progress.deliveries import (
    LAST,
    Choice,
    Decided,
    Decision,
    Named,
    PostgresDeliveries,
    SeenDelivery,
    StoredDelivery,
)

BATCH = 1000
"""How many deliveries one transaction changes."""
PAGE = 200
"""How many are loaded at once."""

T = TypeVar("T")

OnBatch = Callable[[int], None]


class DeliveryInfo(StoredDelivery, frozen=True, kw_only=True):
    """A message that needs attention of its own."""

    message: Message[Any] | None
    """None: it is no longer in the log."""


class Deliveries:
    """The deliveries of one subscription; in PostgreSQL only."""

    def __init__(self, place: Place, group: str, name: str) -> None:
        self._place = place
        self._group = group
        self._name = name

    async def pages(self, choice: Choice, limit: int | None) -> AsyncGenerator[list[DeliveryInfo], None]:
        """Those that are meant, at most so many, in order: in lists with a bounded number and size of messages."""
        stored = await self._stored()
        left = LAST if limit is None else limit
        async with aclosing(stored.chosen(choice)) as chosen:
            async for seen in chosen:
                for part in _in_lists([each.position for each in seen[:left]], PAGE):
                    for page in _by_size(await stored.at(part)):
                        yield await self._with_messages(page)
                        left -= len(page)
                if left <= 0:
                    return

    async def count(self, choice: Choice) -> int:
        """How many are meant."""
        async with aclosing((await self._stored()).chosen(choice)) as chosen:
            return sum([len(seen) async for seen in chosen])

    async def decide(
        self,
        decision: Decision,
        meant: Choice | Named,
        *,
        limit: int | None = None,
        on_batch: OnBatch | None = None,
    ) -> Decided:
        """Decides about those that are meant, the lowest position first, in transactions of a thousand."""
        stored = await self._stored()
        moved, refused, last = 0, dict[int, str](), None
        async with aclosing(stored.chosen(meant) if isinstance(meant, Choice) else _once(meant)) as chosen:
            async for seen in chosen:
                at = 0
                while at < len(seen) and moved != limit:
                    most = BATCH if limit is None else min(BATCH, limit - moved)
                    decided = await stored.decide(decision, seen[at : at + most], meant.states)
                    last = seen[min(at + most, len(seen)) - 1].position
                    at += most
                    moved += decided.moved
                    refused |= decided.refused
                    if on_batch is not None:
                        on_batch(moved)
                if moved == limit:
                    break
        is_cut = isinstance(meant, Choice) and moved == limit
        return Decided(moved=moved, refused=refused, next=last if is_cut else None)

    async def _stored(self) -> PostgresDeliveries:
        services = self._place.services
        if services.database is None:
            raise MilepostError(f"progress is kept {services.kept.value}: its deliveries cannot be operated here")
        standing = await Overview(self._place).standing(self._group, self._name)
        return PostgresDeliveries(services.database, services.home.schema, standing.id)

    async def _with_messages(self, page: Sequence[StoredDelivery]) -> list[DeliveryInfo]:
        place = self._place
        positions = [stored.position for stored in page]
        messages = {m.position: m for m in await place.reader.messages_at(place.log.database, positions)}
        return [
            DeliveryInfo(message=messages.get(stored.position), **msgspec.structs.asdict(stored))
            for stored in page
        ]


def _in_lists(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The same in lists of at most this size."""
    return (items[at : at + size] for at in range(0, len(items), size))


def _by_size(page: Sequence[StoredDelivery]) -> Iterator[Sequence[StoredDelivery]]:
    """Parts of a page whose messages are not too large together."""
    part: list[StoredDelivery] = []
    size = 0
    for stored in page:
        if part and size + stored.size > PAGE_BYTES:
            yield part
            part, size = [], 0
        part.append(stored)
        size += stored.size
    if part:
        yield part


async def _once(named: Named) -> AsyncGenerator[list[SeenDelivery], None]:
    yield [SeenDelivery(position) for position in named.positions]
