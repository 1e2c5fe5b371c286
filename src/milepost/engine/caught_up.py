"""Waits until a subscription has handled an append: read your writes."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from time import monotonic
from typing import Any, TypeAlias

from milepost.engine.place import Place
from milepost.engine.trace.traced import SETTLED, Traced
from milepost.engine.trace.tracer import Tracer
from milepost.engine.trace.whereabouts import Whereabouts
from milepost.errors import NotHandled, NotHandledYet
from milepost.log.message import Appended, Message
from milepost.log.reader import Query

SHORTEST = 0.02
"""Seconds until the second look; each further one waits half as long again."""
LONGEST = 0.1
"""Seconds between two looks at the most: workers write what they have handled twice as seldom."""

Written: TypeAlias = Appended | Mapping[str, Appended] | int
"""What an append came to, or that of an append to several streams, or the position of one message."""


class CaughtUp:
    """Looks again and again at the messages of one append, as long as they are not all handled."""

    def __init__(self, place: Place, group: str, name: str) -> None:
        self._place = place
        self._group = group
        self._name = name
        self._tracer = Tracer(place)

    async def wait(self, written: Written, timeout: float | None) -> None:
        """Returns when all of it is handled; raises when that takes too long, or a person has to act first."""
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout: a number of seconds from 0 on is wanted, not {timeout}")
        deadline = float("inf") if timeout is None else monotonic() + timeout
        messages, missing = await self._messages(written)
        pause = SHORTEST
        while True:
            left = max(0.0, deadline - monotonic())
            messages = await self._unhandled(messages, left)
            if not messages and not missing:
                return
            if left == 0:
                raise await self._too_late(messages, missing)
            await asyncio.sleep(min(pause, left))
            pause = min(LONGEST, 1.5 * pause)
            if missing:
                messages, missing = await self._messages(written)

    async def _messages(self, written: Written) -> tuple[list[Message[Any]], list[str]]:
        """The messages of an append, and what of it is not in the log, which it may never be."""
        reader, database = self._place.reader, self._place.log.database
        if isinstance(written, int):
            page = await reader.messages_at(database, [written])
            return page, [] if page else [f"position {written:,}"]
        messages: list[Message[Any]] = []
        missing: list[str] = []
        for appended in [written] if isinstance(written, Appended) else written.values():
            low, high = appended.version - appended.count, appended.version
            pages = reader.stream_pages(
                database, appended.stream, Query(), after=0, after_version=low, limit=appended.count
            )
            async with aclosing(pages):
                found = [message async for page in pages for message in page if message.version <= high]
            messages += found
            missing += [] if found else [f"{appended.stream} version {high}"]
        return messages, missing

    async def _unhandled(self, messages: Sequence[Message[Any]], left: float) -> list[Message[Any]]:
        """Those that are not handled yet; raises if waiting is of no use."""
        stored = await self._tracer.subscription(self._group, self._name)
        found = [each for each in await self._tracer.whereabouts(messages, [stored]) if not _is_settled(each)]
        for each in found:
            if error := _refusal(each, left):
                [traced] = await self._tracer.told([each])
                raise error(self._said(traced), traced.state)
        for traced in await self._tracer.told([each for each in found if each.state == "waiting"]):
            if traced.waiting_behind is not None and traced.waiting_behind.state == "parked":
                raise NotHandled(self._said(traced), traced.state)
        return [each.message for each in found]

    async def _too_late(self, messages: Sequence[Message[Any]], missing: Sequence[str]) -> NotHandledYet:
        if missing:
            return NotHandledYet(
                f"{self._group}/{self._name} has not handled {missing[0]}, which is not in the log: "
                "the transaction that appended it has not ended, or was rolled back",
                "not reached",
            )
        stored = await self._tracer.subscription(self._group, self._name)
        [traced] = await self._tracer.told(await self._tracer.whereabouts(messages[:1], [stored]))
        return NotHandledYet(self._said(traced, len(messages) - 1), traced.state)

    def _said(self, traced: Traced, more: int = 0) -> str:
        message = traced.message
        others = f" and {more:,} more" if more else ""
        return (
            f"{traced.address} has not handled {message.stream} version {message.version}{others}: "
            f"position {message.position:,} is {traced}"
        )


def _is_settled(found: Whereabouts) -> bool:
    """Whether nothing more comes of it; what a lane has passed without a row, whatever decided."""
    return found.state in SETTLED or (found.state == "unsure" and found.reached)


def _refusal(found: Whereabouts, left: float) -> type[NotHandled] | None:
    """What to raise where waiting is of no use: a person has to act, or it is tried too late."""
    row, subscription = found.row, found.subscription
    if found.state == "parked":
        return NotHandled
    if subscription.status == "paused" and found.state in ("not reached", "retrying"):
        return NotHandled
    if found.state != "retrying" or row is None or row.due is None:
        return None
    return NotHandledYet if (row.due - subscription.now).total_seconds() > left else None
