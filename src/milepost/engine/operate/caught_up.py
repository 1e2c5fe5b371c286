"""How far a subscription is with an append or with one stream: read your writes."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from time import monotonic
from typing import Any, TypeAlias

import msgspec

from milepost.engine.declare.order import BY_STREAM
from milepost.engine.declare.stored_definition import stored_selection
from milepost.engine.operate.trace.history import MessageLocation
from milepost.engine.operate.trace.results import SETTLED_STATES, Traced
from milepost.engine.operate.trace.tracer import Tracer
from milepost.engine.runtime import Runtime
from milepost.errors import NotHandled, NotHandledYet
from milepost.log.codec import check_stream
from milepost.log.message import Appended, Message
from milepost.log.query import Query
from milepost.names import bucket_of
from milepost.progress.postgres.trace import TRACE_SPAN_POSITIONS, StoredSubscription

FIRST_CHECK_PAUSE_SECONDS = 0.02
"""Seconds until the second look; each further one waits half as long again."""
MAX_CHECK_PAUSE_SECONDS = 0.1
"""Seconds between two looks at the most: workers write what they have handled twice as seldom."""

AppendedOrPosition: TypeAlias = Appended | Mapping[str, Appended] | int
"""What an append came to, or that of an append to several streams, or the position of one message."""


class CaughtUpWait:
    """Looks again and again at the messages of one append, as long as they are not all handled."""

    def __init__(self, runtime: Runtime, group: str, name: str) -> None:
        self._runtime = runtime
        self._group = group
        self._name = name
        self._tracer = Tracer(runtime)

    async def wait(self, written: AppendedOrPosition, timeout: float | None) -> None:
        """Returns when all of it is handled; raises when that takes too long, or a person has to act first."""
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout: a number of seconds from 0 on is wanted, not {timeout}")
        deadline = float("inf") if timeout is None else monotonic() + timeout
        messages, missing = await self._messages(written)
        pause = FIRST_CHECK_PAUSE_SECONDS
        while True:
            left = max(0.0, deadline - monotonic())
            messages = await self._unhandled(messages, left)
            if not messages and not missing:
                return
            if left == 0:
                raise await self._too_late(messages, missing)
            await asyncio.sleep(min(pause, left))
            pause = min(MAX_CHECK_PAUSE_SECONDS, 1.5 * pause)
            if missing:
                messages, missing = await self._messages(written)

    async def _messages(self, written: AppendedOrPosition) -> tuple[list[Message[Any]], list[str]]:
        """The messages of an append, and what of it is not in the log, which it may never be."""
        log = self._runtime.log
        if isinstance(written, int):
            page = await log.messages_at([written])
            return page, [] if page else [f"position {written:,}"]
        messages: list[Message[Any]] = []
        missing: list[str] = []
        for appended in [written] if isinstance(written, Appended) else written.values():
            low, high = appended.version - appended.count, appended.version
            pages = log.stream_pages(appended.stream, Query(), after_version=low, limit=appended.count)
            async with aclosing(pages):
                found = [message async for page in pages for message in page if message.version <= high]
            messages += found
            missing += [] if found else [f"{appended.stream} version {high}"]
        return messages, missing

    async def _unhandled(self, messages: Sequence[Message[Any]], left: float) -> list[Message[Any]]:
        """Those that are not handled yet; raises if waiting is of no use."""
        stored = await self._tracer.subscription(self._group, self._name)
        found = [each for each in await self._tracer.locate(messages, [stored]) if not _is_settled(each)]
        for each in found:
            if error := _error_if_hopeless(each, left):
                [traced] = await self._tracer.describe([each])
                raise error(self._describe(traced), traced.state)
        for traced in await self._tracer.describe([each for each in found if each.state == "waiting"]):
            if traced.waiting_behind is not None and traced.waiting_behind.state == "parked":
                raise NotHandled(self._describe(traced), traced.state)
        return [each.message for each in found]

    async def _too_late(self, messages: Sequence[Message[Any]], missing: Sequence[str]) -> NotHandledYet:
        if missing:
            return NotHandledYet(
                f"{self._group}/{self._name} has not handled {missing[0]}, which is not in the log: "
                "the transaction that appended it has not ended, or was rolled back",
                "not reached",
            )
        stored = await self._tracer.subscription(self._group, self._name)
        [traced] = await self._tracer.describe(await self._tracer.locate(messages[:1], [stored]))
        return NotHandledYet(self._describe(traced, len(messages) - 1), traced.state)

    def _describe(self, traced: Traced, more: int = 0) -> str:
        message = traced.message
        others = f" and {more:,} more" if more else ""
        return (
            f"{traced.address} has not handled {message.stream} version {message.version}{others}: "
            f"position {message.position:,} is {traced}"
        )


def _is_settled(found: MessageLocation) -> bool:
    """Whether nothing more comes of it; what a lane has passed without a row, whatever decided."""
    return found.state in SETTLED_STATES or (found.state == "unsure" and found.reached)


def _error_if_hopeless(found: MessageLocation, left: float) -> type[NotHandled] | None:
    """What to raise where waiting is of no use: a person has to act, or it is tried too late."""
    row, subscription = found.row, found.subscription
    if found.state == "parked":
        return NotHandled
    if subscription.status == "paused" and found.state in ("not reached", "retrying"):
        return NotHandled
    if found.state != "retrying" or row is None or row.due is None:
        return None
    return NotHandledYet if (row.due - subscription.now).total_seconds() > left else None


STREAM_PAGE_MESSAGES = 100
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


class StreamProgressFinder:
    """Finds the first message of a stream that a subscription has not handled.

    It is one of two: the first with a row that is not settled, or the first that its lane has not passed. Both are
    found by indexes. Where rows do not say their stream, because the order is or was another one, it looks whether
    there is a row for each version of the stream, or, if those are many, at all rows of the subscription.
    """

    def __init__(self, runtime: Runtime, group: str, name: str) -> None:
        self._log = runtime.log
        self._group = group
        self._name = name
        self._tracer = Tracer(runtime)

    async def of(self, stream: str) -> StreamProgress:
        """How far it is with a stream."""
        check_stream(stream)
        known = await self._log.last_version(stream)
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
        if known <= TRACE_SPAN_POSITIONS:
            of_stream = await self._log.stream_positions(stream, limit=TRACE_SPAN_POSITIONS)
            versions = {position: version for position, _, version in of_stream}
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
        low = await self._log.last_version(stream, up_to=lowest)
        way, chosen = self._tracer.way(stored), stored_selection(stored.definitions[-1].selects)
        query = replace(chosen.narrowing() if chosen else Query(), since=stored.since, page=STREAM_PAGE_MESSAGES)
        pages = self._log.stream_pages(stream, query, after_version=low, limit=None)
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
        """The lowest version of a stream that stands at one of these positions."""
        found = await self._log.streams_at(positions)
        return min((version for _, name, version in found if name == stream), default=None)
