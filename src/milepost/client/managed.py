"""A subscription to look at and to operate, over HTTP."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar

import msgspec

from milepost.client.deliveries import Count, ReceivedInfos
from milepost.client.node import path
from milepost.client.requests import Answer, Request, Requests, encoded
from milepost.client.settings import place, sent
from milepost.engine.caught_up import Written
from milepost.engine.choosing import Positions, States, limited, listed, meant
from milepost.engine.consuming.created import check_changes
from milepost.engine.consuming.options import Created
from milepost.engine.consuming.statistics import SubscriptionStatistics
from milepost.engine.control import Plan
from milepost.engine.deliveries import BATCH, DeliveryInfo, OnBatch
from milepost.engine.info import SubscriptionInfo
from milepost.engine.start import Start, start_from
from milepost.engine.stream_progress import StreamProgress
from milepost.engine.values import checked
from milepost.errors import NotConfirmed, NotHandledYet
from milepost.log.codec import Codec, check_stream
from milepost.log.message import Appended
from milepost.progress.deliveries import LAST, Choice, Decided, Decision, Named

T = TypeVar("T")

PAGE: Final = 200
"""Deliveries of one answer."""
WAIT: Final = 30.0
"""Seconds that one request waits at the most."""


class Moved(msgspec.Struct, frozen=True):
    """What came of a move."""

    forgotten: int


class Replayed(msgspec.Struct, frozen=True):
    """What came of a replay."""

    again: int


class ManagedSubscription:
    """What `manage` of a client gives. Nothing is asked before one of its methods is called.

    They are those of `milepost.engine.managed.ManagedSubscription`.
    """

    def __init__(self, group: str, name: str, requests: Callable[[], Requests], codec: Codec) -> None:
        self.group = group
        self.name = name
        self._requests = requests
        self._codec = codec

    # Looking

    async def info(self) -> SubscriptionInfo:
        """How it stands now; raises `UnknownSubscription` if there is none."""
        return (await self._get()).as_(SubscriptionInfo)

    async def statistics(self) -> SubscriptionStatistics:
        """What the consumers of one that was created do, as its owner told within the last seconds."""
        return (await self._get("statistics")).as_(SubscriptionStatistics)

    async def progress(self, stream: str) -> StreamProgress:
        """How far it is with one stream: the version handled, the version known, lagging or not."""
        check_stream(stream)
        return (await self._get("progress", stream)).as_(StreamProgress)

    async def caught_up(self, written: Written, *, timeout: float | None = 2) -> None:
        """Returns when everything of an append has been handled: done, skipped, or not for this subscription.

        Args:
            written: What `append` or `append_many` returned, or the position of a message.
            timeout: Seconds after which `NotHandledYet` says where it is instead. Defaults to 2; None: never.
        """
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout: a number of seconds from 0 on is wanted, not {timeout}")
        end = float("inf") if timeout is None else monotonic() + timeout
        for query in _written(written):
            await self._repeated(NotHandledYet, end, partial(self._caught_up, query))

    async def _caught_up(self, query: Mapping[str, object], seconds: float) -> None:
        asked = [(name, str(value)) for name, value in query.items()]
        await self._ask("GET", "caught-up", query=[*asked, ("timeout", str(seconds))], seconds=seconds)

    # Deliveries

    async def deliveries(
        self,
        *,
        state: States | None = None,
        key: str | None = None,
        reason: str | None = None,
        after: int = 0,
        up_to: int | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[DeliveryInfo, None]:
        """The messages that need attention of their own, in order of position, in pages.

        Args:
            state: "parked", "retrying", "waiting", "unrouted", "running" or "skipped", or several of them.
                Defaults to all.
            key: Only what is kept in order by this key: the stream, unless the subscription says otherwise.
            reason: Only those whose reason has this text in it, in upper or lower case.
            after: Only higher positions.
            up_to: Only positions up to this one.
            limit: At most so many.
        """
        pages = self.delivery_pages(state=state, key=key, reason=reason, after=after, up_to=up_to, limit=limit)
        async with aclosing(pages):
            async for page in pages:
                for delivery in page:
                    yield delivery

    async def delivery_pages(
        self,
        *,
        state: States | None = None,
        key: str | None = None,
        reason: str | None = None,
        after: int = 0,
        up_to: int | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[list[DeliveryInfo], None]:
        """What `deliveries` gives, in the lists it is loaded in."""
        choice = listed(state=state, key=key, reason=reason, after=after, up_to=up_to)
        left = LAST if (most := limited(limit)) is None else most
        conditions = [] if state is None else _states(choice)
        while left > 0:
            query = [*conditions, *_bounds(choice), ("after", str(after)), ("limit", str(min(PAGE, left)))]
            page = (await self._ask("GET", "deliveries", query=query)).as_(ReceivedInfos)
            if page.deliveries:
                yield [received.info(self._codec) for received in page.deliveries]
            if not page.more or page.next <= after:
                return
            after, left = page.next, left - len(page.deliveries)

    async def count_deliveries(
        self,
        *,
        state: States | None = None,
        key: str | None = None,
        reason: str | None = None,
        after: int = 0,
        up_to: int | None = None,
    ) -> int:
        """How many `deliveries` would give."""
        choice = listed(state=state, key=key, reason=reason, after=after, up_to=up_to)
        query = [*([] if state is None else _states(choice)), *_bounds(choice), ("after", str(after))]
        return (await self._ask("GET", "deliveries", "count", query=query)).as_(Count).count

    async def retry(
        self,
        positions: Positions | None = None,
        *,
        all: bool = False,
        after: int = 0,
        up_to: int | None = None,
        limit: int | None = None,
        state: States | None = None,
        key: str | None = None,
        reason: str | None = None,
        on_batch: OnBatch | None = None,
    ) -> Decided:
        """Has messages tried now, and counted anew: those at these positions, or all, or all up to a position.

        The lowest come first, a thousand in a request, so that it can be interrupted at any point. Where
        another person decides at the same moment, each message is moved by one of both and refused to the other.

        Args:
            positions: Of parked or retrying messages; one or several.
            all: All parked ones.
            after: With `all` and `up_to`: only higher positions.
            up_to: All parked ones up to this position.
            limit: At most so many.
            state: "parked", "retrying" or both; others are left alone. Defaults to "parked", or with
                `positions` to both.
            key: With `all` and `up_to`: only what is kept in order by this key.
            reason: With `all` and `up_to`: only those whose reason has this text in it.
            on_batch: Called after each request with how many messages that is so far.
        """
        chosen = meant(
            Decision.RETRY, positions, all=all, after=after, up_to=up_to, state=state, key=key, reason=reason
        )
        return await self._decide("retry", chosen, limited(limit), on_batch)

    async def skip(
        self,
        positions: Positions | None = None,
        *,
        all: bool = False,
        after: int = 0,
        up_to: int | None = None,
        limit: int | None = None,
        state: States | None = None,
        key: str | None = None,
        reason: str | None = None,
        on_batch: OnBatch | None = None,
    ) -> Decided:
        """Passes messages over for good; what waits behind them goes on. Its arguments are those of `retry`.

        It takes parked, retrying, waiting and unrouted messages; `all` and `up_to` mean the parked ones unless
        `state` says otherwise. A message that is running is left alone.
        """
        chosen = meant(
            Decision.SKIP, positions, all=all, after=after, up_to=up_to, state=state, key=key, reason=reason
        )
        return await self._decide("skip", chosen, limited(limit), on_batch)

    async def _decide(
        self, word: str, chosen: Choice | Named, limit: int | None, on_batch: OnBatch | None
    ) -> Decided:
        """In requests of a thousand, each after what the one before has looked at."""
        moved, refused, after = 0, dict[int, str](), 0 if isinstance(chosen, Named) else chosen.after
        rest = list(chosen.positions) if isinstance(chosen, Named) else None
        while moved != limit and rest != []:
            most = BATCH if limit is None else min(BATCH, limit - moved)
            body = {**_chosen(chosen, rest and rest[:most]), "limit": most}
            if after:
                body["after"] = after
            decided = (await self._ask("POST", "deliveries", word, body=body, repeatable=False)).as_(Decided)
            moved += decided.moved
            refused |= decided.refused
            if on_batch is not None:
                on_batch(moved)
            if rest is not None:
                rest = rest[most:]
            elif decided.next is None:
                return Decided(moved=moved, refused=refused)
            else:
                after = decided.next
        return Decided(moved=moved, refused=refused, next=after or None)

    # Operating

    async def pause(self, *, timeout: float = 60, force: bool = False) -> None:
        """Nothing of it runs when this returns, in no process, until it is resumed; also after restarts.

        Raises `NotConfirmed` if a worker takes longer than `timeout` seconds: it is paused all the same. With
        `force` nobody is waited for: what does not end within half a second is taken back from whoever has it.
        That is no attempt, and what still comes of it counts for nothing. Coroutines are cancelled; a thread
        cannot be, and goes on until it returns.
        """
        await self._waiting("pause", timeout, force=force)

    async def resume(self) -> None:
        """It goes on where it was."""
        await self._ask("POST", "resume")

    async def move(self, to: Start, *, timeout: float = 60, force: bool = False) -> int:
        """Goes on elsewhere: at the "beginning", "now", at a time, or after a position.

        Messages between are handled again, or never. Deliveries above that place are forgotten; returns how many.
        It waits for `timeout` seconds until what runs has ended, while all others go on, and raises `NotConfirmed`
        if something still does: then nothing was done. With `force` that is taken back, as by `pause`.
        """
        body = {"to": place(checked("to", start_from, to))}
        answer = await self._waiting("move", timeout, force=force, body=body, repeatable=False)
        return answer.as_(Moved).forgotten

    async def plan_move(self, to: Start) -> Plan:
        """What `move` would do; nothing is done."""
        query = [("to", str(place(checked("to", start_from, to))))]
        return (await self._ask("GET", "move", query=query)).as_(Plan)

    async def replay(
        self, start: Start, end: datetime | int | None = None, *, timeout: float = 60, force: bool = False
    ) -> int:
        """Repeats what was handled after `start` and up to `end`, then goes on where it was.

        Without `end` it is all that was handled. Returns how many positions that are. It waits as `move` does.
        """
        body = _stretch(start, end)
        answer = await self._waiting("replay", timeout, force=force, body=body, repeatable=False)
        return answer.as_(Replayed).again

    async def plan_replay(self, start: Start, end: datetime | int | None = None) -> Plan:
        """What `replay` would do; nothing is done."""
        query = [(name, str(value)) for name, value in _stretch(start, end).items()]
        return (await self._ask("GET", "replay", query=query)).as_(Plan)

    async def update(self, /, **changes: Any) -> None:
        """Changes settings of one that was created for consumers, without dropping any.

        One that is declared in code is only limited: `concurrency` is how many messages a process handles at once;
        None is what the code says. Anything else raises `DeclaredInCode`.
        """
        check_changes(changes)
        Created.of(self.name, {name: value for name, value in changes.items() if name != "concurrency"})
        await self._ask("PATCH", body=sent(changes))

    async def delete(self, *, timeout: float = 60, force: bool = False) -> None:
        """Forgets it, its progress and its deliveries. A program that declares it makes it anew when it starts.

        It waits as `move` does.
        """
        await self._waiting("", timeout, force=force, method="DELETE", repeatable=False)

    # Asking

    async def _waiting(
        self,
        action: str,
        timeout: float,
        *,
        force: bool,
        method: str = "POST",
        body: Mapping[str, Any] | None = None,
        repeatable: bool = True,
    ) -> Answer:
        """What takes until workers have let it go: as many requests as that takes."""
        segments = [action] if action else []

        async def ask(left: float) -> Answer:
            query = [("timeout", str(left)), *([("force", "true")] if force else ())]
            return await self._ask(method, *segments, query=query, body=body, repeatable=repeatable, seconds=left)

        return await self._repeated(NotConfirmed, monotonic() + timeout, ask)

    async def _repeated(self, not_yet: type[Exception], end: float, ask: Callable[[float], Awaitable[T]]) -> T:
        """Asks again where only the server's own patience was at an end."""
        while True:
            left, began = max(0.0, end - monotonic()), monotonic()
            try:
                return await ask(min(WAIT, left))
            except not_yet:
                if left <= WAIT or monotonic() - began < WAIT:
                    raise

    async def _get(self, *segments: str) -> Answer:
        return await self._ask("GET", *segments)

    async def _ask(
        self,
        method: str,
        *segments: str,
        query: Sequence[tuple[str, str]] = (),
        body: Mapping[str, Any] | None = None,
        repeatable: bool = True,
        seconds: float = 0.0,
    ) -> Answer:
        request = Request(
            method=method,
            path=path("subscriptions", self.group, self.name, *segments),
            query=query,
            body=None if body is None else encoded(body),
            repeatable=repeatable,
            seconds=seconds,
        )
        return await self._requests().ask(request)

    def __repr__(self) -> str:
        return f"ManagedSubscription({f'{self.group}/{self.name}'!r})"


def _written(written: Written) -> list[Mapping[str, object]]:
    if isinstance(written, int):
        return [{"position": written}]
    several = [written] if isinstance(written, Appended) else list(written.values())
    return [{"stream": each.stream, "version": each.version, "messages": each.count} for each in several]


def _stretch(start: Start, end: datetime | int | None) -> dict[str, str | int]:
    first = {"start": place(checked("start", start_from, start))}
    return first if end is None else {**first, "end": place(checked("end", start_from, end))}


def _states(choice: Choice) -> list[tuple[str, str]]:
    return [("state", state.value) for state in sorted(choice.states)]


def _bounds(choice: Choice) -> list[tuple[str, str]]:
    found = [("key", choice.key), ("reason", choice.reason)]
    up_to = [("up_to", str(choice.up_to))] if choice.up_to != LAST else []
    return [(name, value) for name, value in found if value is not None] + up_to


def _chosen(chosen: Choice | Named, positions: Sequence[int] | None) -> dict[str, Any]:
    states = sorted(state.value for state in chosen.states)
    if isinstance(chosen, Named):
        return {"positions": positions, "state": states}
    which = {"all": True} if chosen.up_to == LAST else {"up_to": chosen.up_to}
    words = {"key": chosen.key, "reason": chosen.reason}
    said = {name: value for name, value in words.items() if value is not None}
    return {**which, **said, "state": states}
