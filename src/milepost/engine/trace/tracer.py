"""Asks where messages are: a handful of statements, whatever the size of the log."""

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from milepost.engine.place import Place
from milepost.engine.trace.asking import Asking, without_answer
from milepost.engine.trace.orders import Orders
from milepost.engine.trace.telling import Surroundings, message_at, told
from milepost.engine.trace.traced import Trace, Traced
from milepost.engine.trace.way import Key, Way
from milepost.engine.trace.whereabouts import Whereabouts
from milepost.engine.unknown import unknown_subscription
from milepost.errors import InvalidMessage, MilepostError
from milepost.log.codec import check_stream, check_text
from milepost.log.message import Message
from milepost.log.reader import END, Query
from milepost.progress.tracing import Around, KeyedMessage, StoredSubscription, Tracing

LIMIT = 100
"""How many messages of a stream are traced, unless the caller says otherwise."""
MOST = 1000
"""How many at the most."""

AnyMessage = Message[Any]


class Tracer:
    """Finds messages, and what became of each for each subscription of every group."""

    def __init__(self, place: Place) -> None:
        database = place.services.database
        if database is None:
            raise MilepostError(f"progress is kept {place.services.kept.value}: messages cannot be traced there")
        self._log = place.log
        self._reader = place.reader
        self._orders = Orders(place)
        self.tracing = Tracing(database, place.services.home.schema)

    async def trace(
        self,
        target: str | UUID,
        *,
        group: str | None,
        subscription: str | None,
        limit: int,
        before_version: int | None,
    ) -> Trace:
        """The newest messages of a stream, or those with an id, and what became of them."""
        check_asked(target, limit, before_version, group, subscription)
        messages = await self._messages(target, limit, before_version)
        stored = await self._subscriptions(group, subscription)
        found = await self.whereabouts(messages, stored)
        if (silent := await Asking(self.tracing).ask(found)) is not None:
            # What was in hand when they were asked is known now, or has been passed since.
            stored = await self._subscriptions(group, subscription)
            found = [without_answer(each, silent) for each in await self.whereabouts(messages, stored)]
        traced = await self.told(found)
        first = messages[0].version if messages and messages[0].stream == target else 1
        return Trace(
            messages=tuple(map(message_at, messages)),
            traced=tuple(sorted(traced, key=lambda each: each.message.position)),
            before_version=first if first > 1 else None,
        )

    async def subscription(self, group: str, name: str) -> StoredSubscription:
        """One that is there; raises `UnknownSubscription`."""
        return (await self._subscriptions(group, name))[0]

    def way(self, subscription: StoredSubscription) -> Way:
        """The way of a subscription through the log."""
        return Way(subscription, self._orders)

    async def whereabouts(
        self, messages: Sequence[AnyMessage], subscriptions: Sequence[StoredSubscription]
    ) -> list[Whereabouts]:
        """Where messages are, by subscription."""
        ways = [self.way(subscription) for subscription in subscriptions]
        ids, positions = [way.subscription.id for way in ways], [message.position for message in messages]
        # Rows are read after the cursors, which pass nothing without one.
        rows = await self.tracing.rows(ids, positions) if ids and positions else {}
        return [
            way.find(message, rows.get((way.subscription.id, message.position)))
            for way in ways
            for message in messages
        ]

    async def told(self, found: Sequence[Whereabouts]) -> list[Traced]:
        """The same with all that there is to say of each."""
        around = await self._around(found)
        in_hand = await self._in_hand(found)
        positions = {at for each in around.values() for at in (each.holder, *each.first) if at is not None}
        positions |= set(in_hand.values())
        waits_for_log = any(each.state == "not reached" for each in found)
        horizon = await self._log.horizon.look() if waits_for_log else END
        is_held = any(each.message.position > horizon for each in found)
        surroundings = Surroundings(
            streams=await self._streams_at(positions),
            horizon=horizon,
            in_hand=in_hand,
            holders=tuple(map(str, await self._log.horizon.holders())) if is_held else (),
        )
        return [told(each, around.get(number), surroundings) for number, each in enumerate(found)]

    async def _subscriptions(self, group: str | None, name: str | None) -> list[StoredSubscription]:
        """All, or those that are meant, of which there has to be one."""
        found = await self.tracing.subscriptions(group, name)
        if found or (group is None and name is None):
            return found
        known = [(each.group, each.name) for each in await self.tracing.subscriptions()]
        raise unknown_subscription(group, name, known)

    async def _messages(self, target: str | UUID, limit: int, before_version: int | None) -> list[AnyMessage]:
        if isinstance(target, str):
            check_stream(target)
            if found := await self._of_stream(target, limit, before_version):
                return found
        id_ = _as_id(target)
        return [] if id_ is None else await self._of_id(id_, limit)

    async def _of_stream(self, stream: str, limit: int, before_version: int | None) -> list[AnyMessage]:
        newest = before_version is None
        low = 0 if before_version is None else max(0, before_version - 1 - limit)
        pages = self._reader.stream_pages(
            self._log.database, stream, Query(backwards=newest), after=0, after_version=low, limit=limit
        )
        found = [message async for page in pages for message in page if message.version < (before_version or END)]
        return found[::-1] if newest else found

    async def _of_id(self, id_: UUID, limit: int) -> list[AnyMessage]:
        statement = self._log.statements.get("positions_of_id")
        rows = await self._log.database.execute(statement, {"id": id_, "limit": limit})
        return await self._reader.messages_at(self._log.database, [row[0] for row in rows]) if rows else []

    async def _around(self, found: Sequence[Whereabouts]) -> dict[int, Around]:
        """What is stored of the keys of those that hold others, or are held."""
        asked = {
            number: KeyedMessage(each.subscription.id, each.lane, each.key, each.message.position)
            for number, each in enumerate(found)
            if each.lane is not None
            and each.key is not None
            and (each.row is not None or each.state == "not reached")
        }
        return dict(zip(asked, await self.tracing.around(list(asked.values())), strict=True))

    async def _in_hand(self, found: Sequence[Whereabouts]) -> dict[Key, int]:
        """By subscription, lane and key, the lowest position that workers have in hand, where others may wait."""
        ways = {
            each.subscription.id: self.way(each.subscription)
            for each in found
            if each.state == "not reached" and each.key is not None and each.subscription.flights
        }
        positions = {flight.position for way in ways.values() for flight in way.subscription.flights}
        if not positions:
            return {}
        messages = await self._reader.messages_at(self._log.database, sorted(positions))
        lowest: dict[Key, int] = {}
        for way in ways.values():
            flights = {flight.position for flight in way.subscription.flights}
            for message in messages:
                if message.position in flights and (key := way.key(message)) is not None:
                    lowest.setdefault(key, message.position)
        return lowest

    async def _streams_at(self, positions: Collection[int]) -> dict[int, tuple[str, int]]:
        """Stream and version of the messages at positions, as far as they are there."""
        if not positions:
            return {}
        statement = self._log.statements.get("streams_at")
        rows = await self._log.database.execute(statement, {"positions": sorted(positions)})
        return {position: (stream, version) for position, stream, version in rows}


def _as_id(target: str | UUID) -> UUID | None:
    if isinstance(target, UUID):
        return target
    try:
        return UUID(target)
    except ValueError:
        return None


def check_asked(
    target: str | UUID, limit: int, before_version: int | None, group: str | None, subscription: str | None
) -> None:
    """Refuse what no trace can be of, and no page of one."""
    if not isinstance(target, str | UUID):
        raise InvalidMessage("target", f"a stream's name or a message's id is wanted, not {target!r}")
    _check("limit", limit, 1, MOST)
    if before_version is not None:
        _check("before_version", before_version, 1, END)
    for field, name in (("group", group), ("subscription", subscription)):
        if name is not None:
            check_text(field, name)


def _check(name: str, value: int, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise InvalidMessage(name, f"a whole number from {least:,} to {most:,} is wanted, not {value!r}")
