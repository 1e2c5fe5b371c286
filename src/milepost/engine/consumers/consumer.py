"""A consumer: take deliveries of a subscription within its capacity, and settle them."""

import asyncio
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import uuid4

import msgspec

from milepost.dispatch import Route
from milepost.engine.checks import checked, instances, whole
from milepost.engine.consumers.delivery import RETRY_AFTER, Delivery
from milepost.engine.consumers.routes import ConsumerRoutes
from milepost.engine.declare.handler import AnyDelivery
from milepost.engine.observe.statistics import ConsumerStatistics, DeliveryCounters, DeliveryOutcome, RouteInfo
from milepost.engine.subscription_logger import SubscriptionLogger
from milepost.engine.tracebacks import reason_of
from milepost.errors import ConsumerClosed

if TYPE_CHECKING:
    from milepost.engine.consumers.dispatcher import ConsumerDispatcher


REASON_LEFT: Final = "left"
"""Its block has ended."""
REASON_DRAINED: Final = "drained"
"""It was to take nothing new, and what it had is settled."""
REASON_STOPPED: Final = "stopped"
"""One of its deliveries was settled with `stop`."""
REASON_TOO_MANY_CONSUMERS: Final = "too many consumers"
"""It could not come: there are as many as `max_consumers` allows."""
REASON_DELETED: Final = "deleted"
"""The subscription was."""
REASON_MILEPOST_CLOSED: Final = "closed"
"""The `Milepost` was."""
REASON_LOST: Final = "lost"
"""This process could not go on with the subscription; its log says why."""


TOLERATED_LATE_DELIVERIES = 20
"""So many deliveries a consumer may be late with, and get as many again."""


class AdaptiveCapacity:
    """How many deliveries a consumer may have at once: what it asks for, until it is late with one of many.

    From then on as many as it settled while it had that one, for so many it manages in time; and one if it hangs.
    It may have twice as many whenever it has settled so many.
    """

    __slots__ = ("_alive_at", "_goal", "most", "settled")

    def __init__(self) -> None:
        self.most: int | None = None
        """None: as many as it asks for."""
        self.settled = 0
        """What its user has settled."""
        self._alive_at = float("-inf")
        self._goal = 0

    def limit(self, since: int, timeout: float) -> None:
        """A delivery has timed out that it had since it had settled so many.

        One that has said nothing for half of the time hangs, whatever it settled before.
        """
        hangs = monotonic() - self._alive_at > timeout / 2
        most = 1 if hangs else max(1, self.settled - since)
        self._set(most if self.most is None else min(most, self.most))

    def settle(self, count: int, wanted: int) -> bool:
        """So many were settled, of a consumer that wants to have so many; whether it may have more from now on."""
        self.live()
        self.settled += count
        if self.most is None or self.settled < self._goal:
            return False
        self._set(2 * self.most)
        if self.most >= wanted:
            self.most = None
        return True

    def live(self) -> None:
        """Its user has said something."""
        self._alive_at = monotonic()

    def _set(self, most: int) -> None:
        self.most = most
        self._goal = self.settled + most


CHECK_BATCH_LIMIT = whole(1)


class ConsumerSettleResult(msgspec.Struct, frozen=True):
    """What came of settling several deliveries."""

    moved: tuple[int, ...]
    """The positions of those that were settled."""
    refused: tuple[int, ...]
    """Those that are no longer this consumer's."""


class _Drained(ConsumerClosed, StopAsyncIteration):
    """Ends the loop over a consumer that was drained."""


class Consumer:
    """Deliveries as they come, from the beginning of a block to its end: `async for delivery in consumer`.

    What is open when the block ends goes to others at once, and is no attempt. Only if it ends by an error, what
    the consumer had taken counts as one: it may have been what raised it.
    """

    def __init__(
        self,
        on_enter: Callable[["Consumer"], Awaitable["ConsumerDispatcher"]],
        on_left: Callable[["Consumer"], Awaitable[None]],
        routes: Sequence[Route],
        *,
        name: str | None = None,
        on_lost: Callable[[Sequence[AnyDelivery], str], None] | None = None,
        on_recalled: Callable[[], None] | None = None,
    ) -> None:
        self.name = f"{name or f'{socket.gethostname()}-{os.getpid()}'}-{uuid4().hex[:8]}"
        """What it was called, or the machine and the process; and something of its own."""
        self.numbers = DeliveryCounters()
        self._routing = ConsumerRoutes(routes)
        self._allowance = AdaptiveCapacity()
        self._apart = 0
        self._on_enter = on_enter
        self._on_left = on_left
        self._on_lost = on_lost
        self._on_recalled = on_recalled
        self._dispatcher: ConsumerDispatcher | None = None
        self._arrived: deque[Delivery] = deque()
        self._news = asyncio.Event()
        self._closed: str | None = None
        self._draining = False
        self._suspended = False
        self._acked: list[AnyDelivery] = []
        """Since the last step of the loop; the lane is told of all together."""
        self._latencies: list[float] = []
        """Of these."""

    # Coming and going

    async def __aenter__(self) -> Self:
        if self._dispatcher is not None or self._closed is not None:
            raise RuntimeError("a consumer is entered once")
        try:
            self._dispatcher = await self._on_enter(self)
        except BaseException:
            self.close(REASON_LEFT)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._dispatcher is None:
            return
        if isinstance(error, Exception) and not isinstance(error, ConsumerClosed):
            self.lose(f"its consumer ended by {reason_of(error)}")
        else:
            self.leave()
        await self.gone()

    def leave(self) -> None:
        """It takes nothing more, and what it has goes to others; `gone` follows."""
        self.dispatcher.leave(self)
        self.close(REASON_LEFT)

    def lose(self, reason: str) -> None:
        """It has vanished: what its user had counts as an attempt, with this reason; `gone` follows."""
        self.dispatcher.lose_consumer(self, reason)
        self.close(REASON_LEFT)

    async def gone(self) -> None:
        """Returns when what it settled is stored, and others can have the subscription if it was the last here."""
        await self._on_left(self)

    @property
    def dispatcher(self) -> "ConsumerDispatcher":
        """Where its deliveries come from."""
        if self._dispatcher is None:
            raise RuntimeError("a consumer is used inside `async with`")
        return self._dispatcher

    @property
    def logger(self) -> SubscriptionLogger:
        """What is logged of its subscription."""
        return self.dispatcher.logger

    @property
    def standby(self) -> bool:
        """Whether another process owns the subscription: this one takes over when that leaves."""
        return self.dispatcher.standby

    @property
    def closed(self) -> str | None:
        """Why it has ended, in the words of `ConsumerClosed.reason`; None: it has not."""
        return self._closed

    @property
    def timeout(self) -> float:
        """Seconds within which a delivery has to be settled or extended."""
        return self.dispatcher.options.declaration.timeout

    @property
    def recalls(self) -> bool:
        """True while deliveries that nobody has begun with are wanted back."""
        return self.dispatcher.recalls

    def close(self, reason: str) -> None:
        """It gets nothing more, and is told why; for the dispatcher. The first reason holds."""
        if self._closed is None:
            self._closed = reason
        self._arrived.clear()
        self._news.set()

    # Taking

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        arrived = self._arrived
        while True:
            while arrived:
                delivery = arrived.popleft()
                if delivery.claim.is_in_force:
                    self._begin(delivery, monotonic())
                    return delivery
            await self.more()

    def _begin(self, delivery: Delivery, now: float) -> None:
        """Its user has it from now on, and the whole time for it."""
        delivery.claim.begun = now
        delivery.claim.held_after = self._allowance.settled
        if now - delivery.since > self.dispatcher.patience:
            self.dispatcher.restart(delivery.claim)

    async def batches(self, limit: int = 100) -> AsyncIterator[list[Delivery]]:
        """Deliveries as they come, in lists: what is there, at most so many, without waiting for more."""
        with suppress(_Drained):
            while True:
                yield await self.next_batch(limit)

    async def next_batch(self, limit: int = 100) -> list[Delivery]:
        """The next of these lists; raises `ConsumerClosed` when there is none."""
        checked("limit", CHECK_BATCH_LIMIT, limit)
        while not (batch := self.at_hand(limit)):
            await self.more()
        return batch

    def at_hand(self, limit: int) -> list[Delivery]:
        """What is there now, at most so many; its user has it from now on."""
        now = monotonic()
        batch: list[Delivery] = []
        while self._arrived and len(batch) < limit:
            delivery = self._arrived.popleft()
            if delivery.claim.is_in_force:
                self._begin(delivery, now)
                batch.append(delivery)
        return batch

    async def more(self) -> None:
        """Waits until something may be at hand, or is lost; raises `ConsumerClosed` if nothing ever is."""
        if self._draining and self._closed is None and not self.in_flight:
            self._closed = REASON_DRAINED
        if self._closed == REASON_DRAINED:
            raise _Drained(REASON_DRAINED)
        if self._closed is not None:
            raise ConsumerClosed(self._closed)
        self._news.clear()
        await self._news.wait()

    def take(self, claims: Sequence[AnyDelivery]) -> None:
        """Deliveries have come; for the dispatcher."""
        now, settled = monotonic(), self._allowance.settled
        for claim in claims:
            claim.held_after = settled
            self._arrived.append(Delivery(claim, self, now))
        self._news.set()

    def pop_unseen(self) -> list[AnyDelivery]:
        """What has come and nobody has looked at, which goes back; for the dispatcher."""
        claims = [delivery.claim for delivery in self._arrived if delivery.claim.is_in_force]
        self._arrived.clear()
        self._news.set()
        return claims

    def recall(self) -> list[AnyDelivery]:
        """Nothing is to run for a moment: returns what nobody has looked at, which goes back; for the dispatcher.

        Who has handed it on is told to give back what nobody has begun with.
        """
        if self._on_recalled is not None:
            self._on_recalled()
        return self.pop_unseen()

    def wake(self) -> None:
        """Something that it had is no longer its own; for the dispatcher."""
        self._news.set()

    def notify_lost(self, claims: Sequence[AnyDelivery], reason: str) -> None:
        """These are no longer its own, and it has not settled them; for the dispatcher."""
        if self._on_lost is not None:
            self._on_lost(claims, reason)
        arrived = [delivery for delivery in self._arrived if delivery.claim.is_in_force]
        self._arrived.clear()
        self._arrived.extend(arrived)
        self._news.set()

    def route_of(self, claim: AnyDelivery) -> str:
        """The route that a delivery came by."""
        return self._routing.word_for(claim)

    # Settling

    def ack(self, delivery: Delivery) -> bool:
        """A delivery is done; False if it is no longer this consumer's."""
        claim = delivery.claim
        if delivery.settled or claim.entry.delivery is not claim:
            return False
        delivery.settled = True
        if not self._acked:
            self.dispatcher.settler.ack_soon(self)
        self._acked.append(claim)
        self._latencies.append(monotonic() - (claim.begun or delivery.since))
        return True

    def pop_acked(self) -> tuple[list[AnyDelivery], list[float]]:
        """What is done since this was last asked, and how long each took; for the dispatcher."""
        acked, self._acked = self._acked, []
        latencies, self._latencies = self._latencies, []
        return acked, latencies

    async def settle(
        self,
        *,
        ack: Iterable[Delivery] = (),
        retry: Iterable[Delivery] = (),
        park: Iterable[Delivery] = (),
        skip: Iterable[Delivery] = (),
        after: float | None = None,
        reason: str = "",
    ) -> ConsumerSettleResult:
        """Settles several at once; tells which were refused, since they are no longer this consumer's.

        `after` is for those that are tried again, as `reason` is for all but those that are done.
        """
        moved: list[int] = []
        refused: list[int] = []
        words: dict[str, Any] = {"reason": reason}
        # All of it is looked at before anything is settled.
        checked("after", RETRY_AFTER, after)
        given: tuple[tuple[DeliveryOutcome, list[Delivery], dict[str, Any]], ...] = (
            ("ack", instances("ack", Delivery, ack), {}),
            ("retry", instances("retry", Delivery, retry), {**words, "after": after}),
            ("park", instances("park", Delivery, park), words),
            ("skip", instances("skip", Delivery, skip), words),
        )
        for how, asked, with_words in given:
            late = set(self.settled(how, asked, **with_words)) if asked else set[Delivery]()
            moved += [each.position for each in asked if each not in late]
            refused += [each.position for each in asked if each in late]
        return ConsumerSettleResult(tuple(moved), tuple(refused))

    def settled(self, how: DeliveryOutcome, deliveries: Sequence[Delivery], **words: Any) -> list[Delivery]:
        """Settles deliveries in one way; returns those that were refused."""
        now = monotonic()
        open_: list[AnyDelivery] = []
        latencies: list[float] = []
        refused: list[Delivery] = []
        for delivery in deliveries:
            claim = delivery.claim
            if delivery.settled or claim.entry.delivery is not claim:
                refused.append(delivery)
                continue
            delivery.settled = True
            open_.append(claim)
            latencies.append(now - (claim.begun or delivery.since))
        if open_:
            self.dispatcher.settler.settle(self, how, open_, latencies, **words)
        return refused

    def extend(self, deliveries: Sequence[Delivery], seconds: float) -> list[Delivery]:
        """Gives deliveries so many seconds from now; returns those that were refused."""
        open_ = {each for each in deliveries if each.is_open}
        self._allowance.live()
        self.dispatcher.extend([each.claim for each in open_], seconds)
        return [each for each in deliveries if each not in open_]

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Its user does not have them: they go out again, and are no attempts."""
        self.dispatcher.give_back([each.claim for each in deliveries if not each.settled])

    def stop(self) -> None:
        """It ends: what it has goes to others."""
        self.dispatcher.leave(self)
        self.close(REASON_STOPPED)

    def why_refused(self, delivery: Delivery) -> str:
        """Why a delivery could not be settled, as the end of a sentence."""
        if delivery.settled:
            return "was settled before"
        if self._closed is not None:
            return f"is no longer this consumer's, which has ended: {self._closed}"
        if self.dispatcher.is_overdue(delivery.claim):
            return "timed out: it may be with another consumer by now"
        return (
            "is no longer this consumer's: it was late, an operator took it back, or the connection to the "
            "database was lost; it comes again"
        )

    # Time

    def late(
        self, overdue: Sequence[AnyDelivery], held: Sequence[AnyDelivery], *, apart: int
    ) -> list[AnyDelivery]:
        """It was late with some of what it holds, or late to look at it: returns what it is not to have.

        Of what it looked at that is what it can hardly have begun with. `apart` is how many it has beside these,
        since it asked for much more time.
        """
        allowance = self._allowance
        unseen = [claim for claim in overdue if claim.begun is None]
        if allowance.most is None and len(held) <= TOLERATED_LATE_DELIVERIES:
            return unseen
        allowance.limit(min(claim.held_after for claim in overdue), self.dispatcher.options.declaration.timeout)
        self._apart = apart
        self.dispatcher.reroute(self, self.lane_routes)
        self.dispatcher.doubt(self)
        if len(unseen) == len(overdue):
            return unseen
        return list(dict.fromkeys([*unseen, *held[max(TOLERATED_LATE_DELIVERIES, allowance.most or 0) :]]))

    def has_settled(self, count: int) -> None:
        """Its user has said what becomes of so many; for the dispatcher."""
        allowance = self._allowance
        if allowance.settle(count, self._routing.capacity):
            self.dispatcher.reroute(self, self.lane_routes)
            if allowance.most is None:
                self.dispatcher.trust(self)

    @property
    def is_limited(self) -> bool:
        """Whether it gets fewer than it asks for, since it was late."""
        return self._allowance.most is not None

    @property
    def _most(self) -> int | None:
        most = self._allowance.most
        return None if most is None else most + self._apart

    # Changing

    @property
    def routes(self) -> tuple[Route, ...]:
        """What it asks for."""
        return self._routing.routes

    @property
    def lane_routes(self) -> list[Route]:
        """The same as the core knows it, where each route has a name that it keeps; none while it gets nothing."""
        return [] if self._draining or self._suspended else self._routing.named(self._most)

    async def configure(self, *, routes: Sequence[Route] | None = None, **options: Any) -> None:
        """Other routes from now on, or of the only one another filter, priority or capacity. What it has stays.

        What cannot be is refused, and everything stays as it was.
        """
        self._reroute(self._routing.configured(routes, options))

    async def add(self, route: Route) -> None:
        """One more route."""
        self._reroute(self._routing.with_another(route))

    async def remove(self, route: Route) -> None:
        """One route less; what came by it stays. ValueError if there is no such route, or it is the only one."""
        self._reroute(self._routing.without(route))

    async def drain(self) -> None:
        """Gets nothing new; what it has is still to be settled, and then the loop over it ends."""
        if self._closed == REASON_DRAINED:
            return
        self._refuse_if_closed()
        self._draining = True
        self.dispatcher.reroute(self, [])
        self._news.set()

    def suspend(self) -> None:
        """Gets nothing new until it goes on, and what nobody has looked at goes to others. What it has stays."""
        self._suspended = True
        self.dispatcher.reroute(self, [])
        self.dispatcher.give_back(self.pop_unseen())

    def go_on(self) -> None:
        """Gets deliveries again."""
        self._suspended = False
        self.dispatcher.reroute(self, self.lane_routes)

    def _reroute(self, routing: ConsumerRoutes) -> None:
        self._refuse_if_closed()
        if not self._draining and not self._suspended:
            self.dispatcher.reroute(self, routing.named(self._most))
        self._routing = routing

    def _refuse_if_closed(self) -> None:
        if self._closed is not None:
            raise ConsumerClosed(self._closed)

    # Looking

    @property
    def in_flight(self) -> int:
        """How many deliveries it has."""
        return self.dispatcher.in_flight_of(self) - len(self._acked)

    def statistics(self) -> ConsumerStatistics:
        """What it has, how fast it is, what failed last. Asking changes nothing."""
        # What was acked in this step of the loop counts.
        self.dispatcher.settler.flush()
        return self.statistics_with(self.in_flight)

    def statistics_with(self, in_flight: int) -> ConsumerStatistics:
        """The same, with so many deliveries; for the dispatcher."""
        figures = self.numbers.figures(in_flight)
        routes = tuple(
            RouteInfo(
                name=str(route),
                where=route.where,
                priority=route.priority,
                capacity=route.capacity,
                capacity_bytes=route.capacity_bytes,
            )
            for route in self.routes
        )
        return ConsumerStatistics(consumer=self.name, routes=routes, **msgspec.structs.asdict(figures))

    def __repr__(self) -> str:
        state = self._closed or f"{', '.join(map(str, self.routes))}"
        return f"Consumer({self.name!r}, {state})"
