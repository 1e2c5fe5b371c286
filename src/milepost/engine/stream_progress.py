"""How far a subscription is with one stream."""

from contextlib import aclosing
from dataclasses import replace

import msgspec

from milepost.engine.order import BY_STREAM
from milepost.engine.place import Place
from milepost.engine.trace.selecting import selecting
from milepost.engine.trace.tracer import Tracer
from milepost.log.codec import check_stream
from milepost.log.reader import Query
from milepost.names import bucket_of
from milepost.progress.tracing import SPAN, StoredSubscription

PAGE = 100
"""How many messages are read at once to find the first that is not handled."""


class StreamProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a subscription is with a stream."""

    stream: str
    handled: int
    """All versions up to this one are done, skipped, or not for the subscription."""
    known: int
    """The version of the stream's last message; 0: it has none."""
    lagging: bool
    """Whether something of the stream is still to be handled; what is parked is, too."""
    exact: bool = True
    """False: only a program with the function that it orders by can say; more may have been handled."""


class Progressing:
    """Finds the first message of a stream that a subscription has not handled.

    It is one of two: the first with a row that is not settled, or the first that its lane has not passed. Both are
    found by indexes. Where rows do not say their stream, because the order is or was another one, it looks whether
    there is a row for each version of the stream, or, if those are many, at all rows of the subscription.
    """

    def __init__(self, place: Place, group: str, name: str) -> None:
        self._reader = place.reader
        self._log = place.log
        self._group = group
        self._name = name
        self._tracer = Tracer(place)

    async def of(self, stream: str) -> StreamProgress:
        """How far it is with a stream."""
        check_stream(stream)
        known: int = await self._ask("last_version", stream=stream)
        # Rows are read after the cursors, which pass none without one.
        stored = await self._tracer.subscription(self._group, self._name)
        first = await self._first_row(stored, stream, known)
        ahead, exact = await self._first_ahead(stored, stream, known)
        handled = min(known + 1 if version is None else version for version in (first, ahead)) - 1
        return StreamProgress(
            stream=stream,
            handled=handled,
            known=known,
            lagging=handled < known,
            exact=exact or first == handled + 1,
        )

    async def _first_row(self, stored: StoredSubscription, stream: str, known: int) -> int | None:
        """The first version that has an unsettled row."""
        tracing = self._tracer.tracing
        if all(each.orders == BY_STREAM.text for each in stored.definitions):
            lane = bucket_of(stream) % len(stored.lanes)
            position = await tracing.lowest_of_key(stored.id, lane, stream)
            return None if position is None else await self._version_at(stream, [position])
        if known <= SPAN:
            statement = self._log.statements.get("positions_of_stream")
            rows = await self._log.database.execute(statement, {"stream": stream, "limit": SPAN})
            versions = {position: version for version, position in rows}
            lowest = await tracing.lowest_unsettled(stored.id, list(versions))
            return None if lowest is None else versions[lowest]
        async with aclosing(tracing.unsettled(stored.id)) as unsettled:
            async for positions in unsettled:
                if (version := await self._version_at(stream, positions)) is not None:
                    return version
        return None

    async def _first_ahead(self, stored: StoredSubscription, stream: str, known: int) -> tuple[int | None, bool]:
        """The first version that its lane has not passed and that is selected, and whether that is certain."""
        lowest = min(cursor.position for cursor in stored.cursors)
        low: int = await self._ask("version_up_to", stream=stream, known=known, position=lowest)
        way, chosen = self._tracer.way(stored), selecting(stored.definitions[-1].selects)
        query = replace(chosen.narrowing() if chosen else Query(), since=stored.since, page=PAGE)
        pages = self._reader.stream_pages(
            self._log.database, stream, query, after=0, after_version=low, limit=None
        )
        async with aclosing(pages):
            async for page in pages:
                for message in page:
                    if message.version > known:
                        return None, True
                    passed = way.passed_by_lanes(message)
                    is_wanted = chosen is None or chosen.verdict(message).state == "selected"
                    if is_wanted and not all(passed):
                        return message.version, chosen is not None and not any(passed)
        return None, True

    async def _version_at(self, stream: str, positions: list[int]) -> int | None:
        version: int | None = await self._ask("lowest_version_at", stream=stream, positions=positions)
        return version

    async def _ask(self, statement: str, **parameters: object) -> int:
        """The one number that a statement about the log gives."""
        rows = await self._log.database.execute(self._log.statements.get(statement), parameters)
        number: int = rows[0][0]
        return number
