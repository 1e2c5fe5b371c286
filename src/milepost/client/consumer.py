"""A consumer of a server's subscription: takes deliveries, as many as it has room for, and settles them."""

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self
from uuid import uuid4

import msgspec

from milepost.client.connection import ConsumerConnection
from milepost.client.delivery import (
    MAX_ERROR_CHARACTERS,
    ClientDelivery,
    UnconfirmedSettlement,
    UnconfirmedSettlements,
)
from milepost.client.frames import ReceivedFrameDelivery
from milepost.dispatch import Route
from milepost.engine.checks import checked, instances
from milepost.engine.consumers.consumer import (
    CHECK_BATCH_LIMIT,
    REASON_DRAINED,
    REASON_LEFT,
    REASON_STOPPED,
    ConsumerSettleResult,
)
from milepost.engine.consumers.delivery import EXTEND_BY, RETRY_AFTER
from milepost.engine.consumers.routes import ConsumerRoutes
from milepost.engine.observe.statistics import ConsumerStatistics, DeliveryCounters, DeliveryOutcome
from milepost.engine.subscription_logger import FieldLogger
from milepost.errors import ConsumerClosed, MilepostError
from milepost.log.codec import Codec
from milepost.wire.frames import DeliveryId, RefusedDelivery, SettledFrame

UNNOTICED_WAIT_SHARE: Final = 0.1
"""The share of its time-out, at most a second of it, for which a delivery may wait for its consumer unnoticed."""
FINAL_ANSWERS_SECONDS: Final = 5.0
"""Seconds for the answers to what was settled, when a consumer leaves."""
TIMED_OUT_REASON: Final = "timed out"
WAITED_REASON: Final = "waited here for too long, and went to others"
RECALLED_REASON: Final = "was called back by the server, and comes again"

_logger = logging.getLogger("milepost.client")


class _ConsumerDrained(ConsumerClosed, StopAsyncIteration):
    """Ends the loop over a consumer that was drained."""


class ClientConsumer:
    """Deliveries as they come, from the beginning of a block to its end: `async for delivery in consumer`.

    It outlives its connection: it comes back, to another node if need be, with what it has and what it has said of
    that. Where the server has given that to others meanwhile, the deliveries are lost, which is logged, and `Lost`
    for whoever settles them.

    What is open when the block ends goes to others at once, and is no attempt. Only if it ends by an error, what
    the consumer had taken counts as one: it may have been what raised it.
    """

    def __init__(
        self,
        address: tuple[str, str],
        routes: Sequence[Route],
        connection: Callable[["ClientConsumer"], ConsumerConnection],
        codec: Codec,
        ended: Callable[["ClientConsumer"], None],
    ) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        """The machine, the process and a name of its own."""
        self.numbers = DeliveryCounters()
        self.standby = False
        """Whether another process owns the subscription: this one takes over when that leaves."""
        self.draining = False
        self.settlements = UnconfirmedSettlements()
        self.timeout = 30.0
        """Seconds for a delivery, as the server said."""
        self._address = address
        self._routing = ConsumerRoutes(routes)
        self._new_connection = connection
        self._connection: ConsumerConnection | None = None
        self._codec = codec
        self._ended = ended
        self._open: dict[DeliveryId, ClientDelivery] = {}
        """What the server takes for this consumer's, as far as it is known here."""
        self._arrived: deque[ClientDelivery] = deque()
        self._news = asyncio.Event()
        self._answered = asyncio.Event()
        self._closed: str | None = None
        self._closed_detail = ""
        self._field_logger = FieldLogger(_logger, {"subscription": address[1], "group": address[0]})

    # Coming and going

    async def __aenter__(self) -> Self:
        if self._connection is not None or self._closed is not None:
            raise RuntimeError("a consumer is entered once")
        self._connection = self._new_connection(self)
        try:
            await self._connection.begin()
        except BaseException:
            self.close(REASON_LEFT)
            await self._connection.end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, ConsumerClosed) and self._closed is None:
            self._fail_taken(f"its consumer ended by {type(error).__name__}: {error}")
        await self.leave(REASON_LEFT)

    def _fail_taken(self, reason: str) -> None:
        for delivery in list(self._open.values()):
            if delivery.begun is not None and not delivery.settled:
                self.settle_soon(delivery, "retry", reason=reason)

    async def leave(self, reason: str) -> None:
        """Ends it: what it has said is still told, and what it has goes to others."""
        connection = self.connection
        if self._closed is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(FINAL_ANSWERS_SECONDS):
                    await self._all_answered()
        self.close(reason)
        await connection.end()
        self._ended(self)

    async def _all_answered(self) -> None:
        while self.settlements and self._closed is None:
            self._answered.clear()
            await self._answered.wait()

    @property
    def connection(self) -> ConsumerConnection:
        """Its connection."""
        if self._connection is None:
            raise RuntimeError("a consumer is used inside `async with`")
        return self._connection

    @property
    def closed(self) -> str | None:
        """Why it has ended, in the words of `ConsumerClosed.reason`; None: it has not."""
        return self._closed

    def close(self, reason: str, detail: str = "") -> None:
        """It gets nothing more, and is told why. The first reason holds."""
        if self._closed is None:
            self._closed, self._closed_detail = reason, f": {detail}" if detail else ""
            self.lose_all(
                f"is no longer this consumer's, which has ended: {reason}",
                quiet=reason in (REASON_LEFT, REASON_STOPPED),
            )
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._answered.set()

    def warn(self, problem: str, error: BaseException | None = None) -> None:
        """Writes down what somebody should know."""
        self._field_logger.warning("%s: %s", self._address[1], problem, exc_info=error)

    # Taking

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ClientDelivery:
        return (await self.next_batch(1))[0]

    async def batches(self, limit: int = 100) -> AsyncIterator[list[ClientDelivery]]:
        """Deliveries as they come, in lists: what is there, at most so many, without waiting for more."""
        with suppress(_ConsumerDrained):
            while True:
                yield await self.next_batch(limit)

    async def next_batch(self, limit: int = 100) -> list[ClientDelivery]:
        """What is there, at most so many; waits for the first."""
        checked("limit", CHECK_BATCH_LIMIT, limit)
        while not (batch := self._taken(limit)):
            await self._more()
        return batch

    def _taken(self, limit: int) -> list[ClientDelivery]:
        now, batch = monotonic(), list[ClientDelivery]()
        while self._arrived and len(batch) < limit:
            delivery = self._arrived.popleft()
            if delivery.lost is None:
                self._begin(delivery, now)
                batch.append(delivery)
        return batch

    def _begin(self, delivery: ClientDelivery, now: float) -> None:
        """Its user has it from now on, and the whole time for it."""
        delivery.begun = now
        if now - delivery.since > min(1.0, self.timeout * UNNOTICED_WAIT_SHARE):
            self._extend([delivery], self.timeout)

    async def _more(self) -> None:
        """Waits until there may be something to take; raises `ConsumerClosed` if there never is."""
        if self._closed == REASON_DRAINED:
            raise _ConsumerDrained(REASON_DRAINED)
        self.raise_if_closed()
        self._news.clear()
        await self._news.wait()

    def raise_if_closed(self) -> None:
        """Raises `ConsumerClosed` if it has ended."""
        if self._closed is not None:
            raise ConsumerClosed(self._closed, self._closed_detail)

    # What the connection tells

    def take(self, deliveries: Sequence[ReceivedFrameDelivery]) -> None:
        """Deliveries have come."""
        now = monotonic()
        for one in deliveries:
            delivery = ClientDelivery(
                self,
                one.message.message(self._codec),
                id=one.id,
                attempt=one.attempt,
                route=one.route,
                replay=one.replay,
                since=now,
            )
            self._open[one.id] = delivery
            self._arrived.append(delivery)
            self.numbers.delivered += 1
            self.numbers.redelivered += one.attempt > 1
        self._news.set()

    @property
    def open(self) -> Collection[DeliveryId]:
        """What it has, by the server's numbers."""
        return self._open.keys()

    @property
    def most_open(self) -> int:
        """How many deliveries it asks for at the most."""
        return sum(route.capacity for route in self.routes)

    def extend_waiting(self) -> None:
        """What waits here for its user is not to time out; what has waited for too long goes to others."""
        now = monotonic()
        waiting = [each for each in self._arrived if each.lost is None]
        self._give_back([each for each in waiting if now - each.arrived > self.timeout], WAITED_REASON)
        self._extend(
            [each for each in waiting if each.lost is None and now - each.since > self.timeout / 4], self.timeout
        )

    def recalled(self) -> None:
        """Nothing is to run for a moment: what waits here for its user goes back at once."""
        self._give_back([each for each in self._arrived if each.lost is None], RECALLED_REASON)

    def _give_back(self, deliveries: Sequence[ClientDelivery], why: str) -> None:
        """Nobody has begun with these."""
        for delivery in deliveries:
            delivery.lost = why
            self.settlements.add(UnconfirmedSettlement(delivery, "back"))
        if deliveries:
            self._forget_lost()
            self.connection.wake_sender()

    def _forget_lost(self) -> None:
        waiting = [delivery for delivery in self._arrived if delivery.lost is None]
        self._arrived.clear()
        self._arrived.extend(waiting)

    def resumed(self, still_open: Iterable[DeliveryId]) -> None:
        """The server has kept it, with these; the connection says when it has told of all the others."""
        kept = set(still_open)
        self.settlements.resumed(kept)

    def confirm_gone(self, gone: Iterable[DeliveryId]) -> None:
        """The server has told what it took away meanwhile: what else is not open any more was settled."""
        for settlement in self.settlements.take_confirmed():
            self._resolve(settlement, None)
        unsettled = [each for each in gone if each in self._open and not self._open[each].settled]
        self.lost([RefusedDelivery(each, "it was taken away while the connection was cut") for each in unsettled])
        self._wake()

    def lost(self, lost: Sequence[RefusedDelivery]) -> None:
        """Deliveries are no longer its own."""
        told = [each for each in lost if each.id in self._open]
        for settlement, reason in self.settlements.remove_lost(told):
            self._resolve(settlement, _lost_sentence(reason))
        for each in told:
            if (delivery := self._open.pop(each.id, None)) is not None:
                self._mark(delivery, _lost_sentence(each.reason), timed_out=each.reason == TIMED_OUT_REASON)
        self._forget_lost()
        self._wake()

    def lose_all(self, why: str, *, quiet: bool = False) -> None:
        """Nothing of what it has is its own any more."""
        taken = [each for each in self._open.values() if each.begun is not None and not each.settled]
        unanswered = self.settlements.all()
        if (taken or unanswered) and not quiet:
            positions = sorted({each.position for each in (*taken, *(one.delivery for one in unanswered))})
            shown = ", ".join(map(str, positions[:10])) + ("…" if len(positions) > 10 else "")
            self.warn(f"lost {len(positions):,} deliveries that were open here, at {shown}: each {why}")
        for delivery in self._open.values():
            delivery.lost = delivery.lost or why
        self._open.clear()
        self._arrived.clear()
        for settlement in unanswered:
            settlement.resolve(why)
        self._wake()

    def _mark(self, delivery: ClientDelivery, why: str, *, timed_out: bool) -> None:
        delivery.lost = why
        if timed_out:
            self.numbers.settled("timeout", [self.timeout])
            self._failed(TIMED_OUT_REASON)
        if delivery.begun is not None and not delivery.settled:
            self.warn(f"the message at position {delivery.position} {why}")

    def answer(self, frame: SettledFrame) -> None:
        """The server has answered."""
        for settlement, refusal in self.settlements.answered(frame):
            self._resolve(settlement, refusal)
        self._wake()

    def frame_failed(self, ref: object, error: MilepostError) -> bool:
        """A frame had no effect; whether it was one with settlements."""
        failed = self.settlements.failed(ref)
        for settlement in failed:
            self._resolve(settlement, f"could not be settled: {error}")
        self._wake()
        return bool(failed)

    def _resolve(self, settlement: UnconfirmedSettlement, refusal: str | None) -> None:
        delivery, how = settlement.delivery, settlement.how
        if how is not None or refusal is not None:
            self._open.pop(delivery.id, None)
        if how == "back":
            return
        if refusal is not None:
            delivery.lost = delivery.lost or refusal
            if settlement.answer is None:
                self.warn(f"the message at position {delivery.position} {refusal}")
        elif how is not None:
            self.numbers.settled(how, [monotonic() - (delivery.begun or delivery.since)])
            if how in ("retry", "park"):
                self._failed(settlement.words.get("reason") or how)
        settlement.resolve(refusal)

    def _failed(self, reason: str) -> None:
        self.numbers.error, self.numbers.error_at = reason, datetime.now(UTC)

    # Settling

    def settle_soon(self, delivery: ClientDelivery, how: DeliveryOutcome, **words: Any) -> bool:
        """Settles a delivery without waiting for the answer; False if it is known to be no longer its own."""
        return self._queue_settlement(delivery, how, words) is not None

    async def settle_one(self, delivery: ClientDelivery, how: DeliveryOutcome, **words: Any) -> None:
        """Settles a delivery; raises `Lost` if it is no longer its own."""
        answer = self._queue_settlement(delivery, how, words, wait=True)
        if answer is None or answer.answer is None:
            raise delivery.lost_error()
        if await answer.answer is not None:
            delivery.settled = False
            raise delivery.lost_error()

    def _queue_settlement(
        self, delivery: ClientDelivery, how: DeliveryOutcome, words: dict[str, Any], *, wait: bool = False
    ) -> UnconfirmedSettlement | None:
        checked_words = _checked_words(words)
        if delivery.settled or delivery.lost is not None:
            return None
        delivery.settled = True
        answer = asyncio.get_running_loop().create_future() if wait else None
        settlement = UnconfirmedSettlement(delivery, how, checked_words, answer)
        self.settlements.add(settlement)
        self.connection.wake_sender()
        return settlement

    async def settle(
        self,
        *,
        ack: Iterable[ClientDelivery] = (),
        retry: Iterable[ClientDelivery] = (),
        park: Iterable[ClientDelivery] = (),
        skip: Iterable[ClientDelivery] = (),
        after: float | None = None,
        reason: str = "",
    ) -> ConsumerSettleResult:
        """Settles several at once; tells which were refused, since they are no longer this consumer's.

        `after` is for those that are tried again, as `reason` is for all but those that are done.
        """
        words: dict[str, Any] = {"reason": reason}
        # All of it is looked at before anything is settled.
        checked("after", RETRY_AFTER, after)
        given: tuple[tuple[DeliveryOutcome, list[ClientDelivery], dict[str, Any]], ...] = (
            ("ack", _deliveries("ack", ack), {}),
            ("retry", _deliveries("retry", retry), {**words, "after": after}),
            ("park", _deliveries("park", park), words),
            ("skip", _deliveries("skip", skip), words),
        )
        asked = [
            (delivery, self._queue_settlement(delivery, how, with_words, wait=True))
            for how, deliveries, with_words in given
            for delivery in deliveries
        ]
        moved, refused = list[int](), list[int]()
        for delivery, settlement in asked:
            is_late = settlement is None or settlement.answer is None or await settlement.answer is not None
            (refused if is_late else moved).append(delivery.position)
        return ConsumerSettleResult(tuple(moved), tuple(refused))

    async def extend(self, delivery: ClientDelivery, seconds: float) -> None:
        """Gives a delivery so many seconds from now; raises `Lost` if it is no longer its own."""
        checked("seconds", EXTEND_BY, seconds)
        if delivery.settled or delivery.lost is not None:
            raise delivery.lost_error()
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self.settlements.add(UnconfirmedSettlement(delivery, None, {"seconds": seconds}, answer))
        self.connection.wake_sender()
        if await answer is not None:
            raise delivery.lost_error()

    def _extend(self, deliveries: Iterable[ClientDelivery], seconds: float) -> None:
        now = monotonic()
        for delivery in deliveries:
            delivery.since = now
            self.settlements.add(UnconfirmedSettlement(delivery, None, {"seconds": seconds}))
        if self.settlements.is_waiting:
            self.connection.wake_sender()

    def log_failure(
        self, delivery: ClientDelivery, how: DeliveryOutcome, words: dict[str, Any], error: Exception
    ) -> None:
        """Writes down what a block raised, as the library does."""
        if "error" in words:
            text = (
                f"position {delivery.position} of {delivery.message.stream}: failed at attempt {delivery.attempt}"
            )
            self._field_logger.warning("%s: %s: %s", self._address[1], text, words["reason"], exc_info=error)

    async def stop(self) -> None:
        """It ends: what it has goes to others."""
        self.close(REASON_STOPPED)
        await self.connection.end()

    # Changing

    @property
    def routes(self) -> tuple[Route, ...]:
        """What it asks for."""
        return self._routing.routes

    async def configure(self, *, routes: Sequence[Route] | None = None, **options: Any) -> None:
        """Other routes from now on, or of the only one another filter, priority or capacity. What it has stays.

        What cannot be is refused, and everything stays as it was.
        """
        await self._reroute(self._routing.configured(routes, options))

    async def add(self, route: Route) -> None:
        """One more route."""
        await self._reroute(self._routing.with_another(route))

    async def remove(self, route: Route) -> None:
        """One route less; what came by it stays. ValueError if there is no such route, or it is the only one."""
        await self._reroute(self._routing.without(route))

    async def _reroute(self, routing: ConsumerRoutes) -> None:
        self.raise_if_closed()
        before, self._routing = self._routing, routing
        if self.draining:
            return
        try:
            await self.connection.configure()
        except MilepostError:
            self._routing = before
            raise

    async def drain(self) -> None:
        """Gets nothing new; what it has is still to be settled, and then the loop over it ends."""
        if self._closed == REASON_DRAINED:
            return
        self.raise_if_closed()
        self.draining = True
        await self.connection.drain()

    # Looking

    @property
    def in_flight(self) -> int:
        """How many deliveries it has."""
        return sum(not delivery.settled for delivery in self._open.values())

    def statistics(self) -> ConsumerStatistics:
        """What it has, how fast it is, what failed last, as seen from here. Asking changes nothing."""
        figures = self.numbers.figures(self.in_flight)
        return ConsumerStatistics(consumer=self.name, **msgspec.structs.asdict(figures))

    def __repr__(self) -> str:
        return f"Consumer({'/'.join(self._address)!r})"


def _deliveries(name: str, given: Iterable[ClientDelivery]) -> list[ClientDelivery]:
    # Both kinds of consumers call them the same: whoever uses them need not know which kind it is.
    return instances(name, ClientDelivery, given, called="Delivery")


def _checked_words(words: dict[str, Any]) -> dict[str, Any]:
    """What is said of a delivery, as it can be sent."""
    if "after" in words:
        checked("after", RETRY_AFTER, words["after"])
    return {
        name: _encodable_end(value) if isinstance(value, str) else value
        for name, value in words.items()
        if value is not None
    }


def _encodable_end(value: str) -> str:
    """Without halves of surrogate pairs, which cannot be sent; the end of a long one is what tells most."""
    return value[-MAX_ERROR_CHARACTERS:].encode(errors="backslashreplace").decode()


def _lost_sentence(reason: str) -> str:
    """Why a delivery was lost, as the end of a sentence."""
    return (
        "timed out: it may be with another consumer by now" if reason == TIMED_OUT_REASON else f"is lost: {reason}"
    )
