"""A subscription to look at and to operate, over HTTP."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict
from datetime import datetime
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar

import msgspec

from milepost.client.messages import ReceivedMessage
from milepost.client.nodes import api_path
from milepost.client.transport import ApiAnswer, ApiRequest, HttpTransport, encode_body
from milepost.dispatch.retry import Retry
from milepost.engine.checks import checked
from milepost.engine.declare.consumer_options import ConsumerSubscriptionOptions, check_changes
from milepost.engine.declare.declaration import Start, checked_start
from milepost.engine.declare.order import ByProperty, by_correlation
from milepost.engine.observe.statistics import SubscriptionStatistics
from milepost.engine.operate.caught_up import AppendedOrPosition, StreamProgress
from milepost.engine.operate.control import Plan
from milepost.engine.operate.deliveries import (
    MAX_DECISION_DELIVERIES,
    DeliveryInfo,
    OnBatch,
    Positions,
    States,
    checked_limit,
    choice_to_decide,
    choice_to_list,
)
from milepost.engine.operate.info import SubscriptionInfo
from milepost.errors import NotConfirmed, NotHandledYet
from milepost.log.codec import Codec, check_stream
from milepost.log.message import Appended
from milepost.names import MAX_POSITION_NUMBER
from milepost.progress.deliveries import (
    Decided,
    Decision,
    DeliveryChoice,
    NamedDeliveries,
    StoredDelivery,
)
from milepost.wire.deliveries import Count
from milepost.wire.subscriptions import Moved, Replayed


def options_to_json(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that the library takes, as JSON has them."""
    return {name: _CONVERSIONS[name](value) if name in _CONVERSIONS else value for name, value in options.items()}


def place_to_json(start: Start) -> str | int:
    """A place in the log."""
    return start.isoformat() if isinstance(start, datetime) else start


def _retry_to_json(retry: Retry) -> dict[str, Any]:
    return {name: value for name, value in asdict(retry).items() if name != "rules"}


def _order_to_json(order: Any) -> Any:
    if isinstance(order, ByProperty):
        return {"property": order.name}
    return "correlation" if order is by_correlation else order


_CONVERSIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "retry": _retry_to_json,
    "checkpoint": asdict,
    "ordered_by": _order_to_json,
    "start": place_to_json,
    "category": lambda names: names if names is None or isinstance(names, str) else list(names),
    "stream": lambda names: names if names is None or isinstance(names, str) else list(names),
    "types": lambda names: names if names is None or isinstance(names, str) else list(names),
}


_STORED_FIELDS = StoredDelivery.__struct_fields__


class ReceivedListedDelivery(StoredDelivery, frozen=True, kw_only=True):
    """A delivery as a server tells it."""

    message: ReceivedMessage | None

    def info(self, codec: Codec) -> DeliveryInfo:
        """The same as the library gives it."""
        stored: dict[str, Any] = {name: getattr(self, name) for name in _STORED_FIELDS}
        return DeliveryInfo(message=None if self.message is None else self.message.message(codec), **stored)


class ReceivedDeliveryPage(msgspec.Struct, frozen=True):
    """The deliveries of one answer."""

    deliveries: list[ReceivedListedDelivery]
    next: int
    more: bool


T = TypeVar("T")

DELIVERIES_PER_PAGE: Final = 200
"""Deliveries of one answer."""
OPERATION_WAIT_SECONDS: Final = 30.0
"""Seconds that one request waits at the most."""


class ClientSubscription:
    """What `manage` of a client gives. Nothing is asked before one of its methods is called.

    They are those of `milepost.engine.operate.manage.ManagedSubscription`.
    """

    def __init__(self, group: str, name: str, requests: Callable[[], HttpTransport], codec: Codec) -> None:
        self.group = group
        self.name = name
        self._requests = requests
        self._codec = codec

    # Looking

    async def info(self) -> SubscriptionInfo:
        """How it stands now; raises `UnknownSubscription` if there is none."""
        return (await self._get()).decode_as(SubscriptionInfo)

    async def statistics(self) -> SubscriptionStatistics:
        """What the consumers of one that was created do, as its owner told within the last seconds."""
        return (await self._get("statistics")).decode_as(SubscriptionStatistics)

    async def progress(self, stream: str) -> StreamProgress:
        """How far it is with one stream: the version handled, the version known, lagging or not."""
        check_stream(stream)
        return (await self._get("progress", stream)).decode_as(StreamProgress)

    async def caught_up(self, written: AppendedOrPosition, *, timeout: float | None = 2) -> None:
        """Returns when everything of an append has been handled: done, skipped, or not for this subscription.

        Args:
            written: What `append` or `append_many` returned, or the position of a message.
            timeout: Seconds after which `NotHandledYet` says where it is instead. Defaults to 2; None: never.
        """
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout: a number of seconds from 0 on is wanted, not {timeout}")
        end = float("inf") if timeout is None else monotonic() + timeout
        for query in _append_queries(written):
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
        choice = choice_to_list(state=state, key=key, reason=reason, after=after, up_to=up_to)
        left = MAX_POSITION_NUMBER if (most := checked_limit(limit)) is None else most
        conditions = [] if state is None else _state_query(choice)
        while left > 0:
            query = [
                *conditions,
                *_bounds_query(choice),
                ("after", str(after)),
                ("limit", str(min(DELIVERIES_PER_PAGE, left))),
            ]
            page = (await self._ask("GET", "deliveries", query=query)).decode_as(ReceivedDeliveryPage)
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
        choice = choice_to_list(state=state, key=key, reason=reason, after=after, up_to=up_to)
        query = [*([] if state is None else _state_query(choice)), *_bounds_query(choice), ("after", str(after))]
        return (await self._ask("GET", "deliveries", "count", query=query)).decode_as(Count).count

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
        chosen = choice_to_decide(
            Decision.RETRY, positions, all=all, after=after, up_to=up_to, state=state, key=key, reason=reason
        )
        return await self._decide("retry", chosen, checked_limit(limit), on_batch)

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
        chosen = choice_to_decide(
            Decision.SKIP, positions, all=all, after=after, up_to=up_to, state=state, key=key, reason=reason
        )
        return await self._decide("skip", chosen, checked_limit(limit), on_batch)

    async def _decide(
        self, word: str, chosen: DeliveryChoice | NamedDeliveries, limit: int | None, on_batch: OnBatch | None
    ) -> Decided:
        """In requests of a thousand, each after what the one before has looked at."""
        moved, refused, after = 0, dict[int, str](), 0 if isinstance(chosen, NamedDeliveries) else chosen.after
        rest = list(chosen.positions) if isinstance(chosen, NamedDeliveries) else None
        while moved != limit and rest != []:
            most = MAX_DECISION_DELIVERIES if limit is None else min(MAX_DECISION_DELIVERIES, limit - moved)
            body = {**_decision_body(chosen, rest and rest[:most]), "limit": most}
            if after:
                body["after"] = after
            decided = (await self._ask("POST", "deliveries", word, body=body, repeatable=False)).decode_as(Decided)
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
        body = {"to": place_to_json(checked("to", checked_start, to))}
        answer = await self._waiting("move", timeout, force=force, body=body, repeatable=False)
        return answer.decode_as(Moved).forgotten

    async def plan_move(self, to: Start) -> Plan:
        """What `move` would do; nothing is done."""
        query = [("to", str(place_to_json(checked("to", checked_start, to))))]
        return (await self._ask("GET", "move", query=query)).decode_as(Plan)

    async def replay(
        self, start: Start, end: datetime | int | None = None, *, timeout: float = 60, force: bool = False
    ) -> int:
        """Repeats what was handled after `start` and up to `end`, then goes on where it was.

        Without `end` it is all that was handled. Returns how many positions that are. It waits as `move` does.
        """
        body = _replay_range(start, end)
        answer = await self._waiting("replay", timeout, force=force, body=body, repeatable=False)
        return answer.decode_as(Replayed).again

    async def plan_replay(self, start: Start, end: datetime | int | None = None) -> Plan:
        """What `replay` would do; nothing is done."""
        query = [(name, str(value)) for name, value in _replay_range(start, end).items()]
        return (await self._ask("GET", "replay", query=query)).decode_as(Plan)

    async def update(self, /, **changes: Any) -> None:
        """Changes settings of one that was created for consumers, without dropping any.

        One that is declared in code is only limited: `concurrency` is how many messages a process handles at once;
        None is what the code says. Anything else raises `DeclaredInCode`.
        """
        check_changes(changes)
        ConsumerSubscriptionOptions.of(
            self.name, {name: value for name, value in changes.items() if name != "concurrency"}
        )
        await self._ask("PATCH", body=options_to_json(changes))

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
    ) -> ApiAnswer:
        """What takes until workers have let it go: as many requests as that takes."""
        segments = [action] if action else []

        async def ask(left: float) -> ApiAnswer:
            query = [("timeout", str(left)), *([("force", "true")] if force else ())]
            return await self._ask(method, *segments, query=query, body=body, repeatable=repeatable, seconds=left)

        return await self._repeated(NotConfirmed, monotonic() + timeout, ask)

    async def _repeated(self, not_yet: type[Exception], end: float, ask: Callable[[float], Awaitable[T]]) -> T:
        """Asks again where only the server's own patience was at an end."""
        while True:
            left, began = max(0.0, end - monotonic()), monotonic()
            try:
                return await ask(min(OPERATION_WAIT_SECONDS, left))
            except not_yet:
                if left <= OPERATION_WAIT_SECONDS or monotonic() - began < OPERATION_WAIT_SECONDS:
                    raise

    async def _get(self, *segments: str) -> ApiAnswer:
        return await self._ask("GET", *segments)

    async def _ask(
        self,
        method: str,
        *segments: str,
        query: Sequence[tuple[str, str]] = (),
        body: Mapping[str, Any] | None = None,
        repeatable: bool = True,
        seconds: float = 0.0,
    ) -> ApiAnswer:
        request = ApiRequest(
            method=method,
            path=api_path("subscriptions", self.group, self.name, *segments),
            query=query,
            body=None if body is None else encode_body(body),
            repeatable=repeatable,
            seconds=seconds,
        )
        return await self._requests().ask(request)

    def __repr__(self) -> str:
        return f"ManagedSubscription({f'{self.group}/{self.name}'!r})"


def _append_queries(written: AppendedOrPosition) -> list[Mapping[str, object]]:
    if isinstance(written, int):
        return [{"position": written}]
    several = [written] if isinstance(written, Appended) else list(written.values())
    return [{"stream": each.stream, "version": each.version, "messages": each.count} for each in several]


def _replay_range(start: Start, end: datetime | int | None) -> dict[str, str | int]:
    first = {"start": place_to_json(checked("start", checked_start, start))}
    return first if end is None else {**first, "end": place_to_json(checked("end", checked_start, end))}


def _state_query(choice: DeliveryChoice) -> list[tuple[str, str]]:
    return [("state", state.value) for state in sorted(choice.states)]


def _bounds_query(choice: DeliveryChoice) -> list[tuple[str, str]]:
    found = [("key", choice.key), ("reason", choice.reason)]
    up_to = [("up_to", str(choice.up_to))] if choice.up_to != MAX_POSITION_NUMBER else []
    return [(name, value) for name, value in found if value is not None] + up_to


def _decision_body(chosen: DeliveryChoice | NamedDeliveries, positions: Sequence[int] | None) -> dict[str, Any]:
    states = sorted(state.value for state in chosen.states)
    if isinstance(chosen, NamedDeliveries):
        return {"positions": positions, "state": states}
    which = {"all": True} if chosen.up_to == MAX_POSITION_NUMBER else {"up_to": chosen.up_to}
    words = {"key": chosen.key, "reason": chosen.reason}
    said = {name: value for name, value in words.items() if value is not None}
    return {**which, **said, "state": states}
