"""A consumer: takes deliveries of a subscription, as many as it has room for, and settles them."""

import asyncio
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import msgspec

from milepost.dispatch import Delivery as Claim
from milepost.dispatch import Route
from milepost.engine.consuming.allowance import FEW, Allowance
from milepost.engine.consuming.delivery import RETRY_AFTER, Delivery
from milepost.engine.consuming.endings import DRAINED, LEFT, STOPPED
from milepost.engine.consuming.routing import Routing
from milepost.engine.consuming.statistics import ConsumerStatistics, How, Numbers, RouteInfo
from milepost.engine.journal import Journal
from milepost.engine.tracebacks import reason_of
from milepost.engine.values import checked, instances, whole
from milepost.errors import ConsumerClosed
from milepost.log.message import Message

if TYPE_CHECKING:
    from milepost.engine.consuming.desk import Desk

AnyClaim = Claim[Message[Any]]

BATCH_LIMIT = whole(1)


class Settled(msgspec.Struct, frozen=True):
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
        attend: Callable[["Consumer"], Awaitable["Desk"]],
        left: Callable[["Consumer"], Awaitable[None]],
        routes: Sequence[Route],
        *,
        name: str | None = None,
        lost: Callable[[Sequence[AnyClaim], str], None] | None = None,
        recalled: Callable[[], None] | None = None,
    ) -> None:
        self.name = f"{name or f'{socket.gethostname()}-{os.getpid()}'}-{uuid4().hex[:8]}"
        """What it was called, or the machine and the process; and something of its own."""
        self.numbers = Numbers()
        self._routing = Routing(routes)
        self._allowance = Allowance()
        self._apart = 0
        self._attend = attend
        self._left = left
        self._told_lost = lost
        self._told_recalled = recalled
        self._desk: Desk | None = None
        self._arrived: deque[Delivery] = deque()
        self._news = asyncio.Event()
        self._closed: str | None = None
        self._draining = False
        self._suspended = False
        self._acked: list[AnyClaim] = []
        """Since the last step of the loop; the lane is told of all together."""
        self._latencies: list[float] = []
        """Of these."""

    # Coming and going

    async def __aenter__(self) -> Self:
        if self._desk is not None or self._closed is not None:
            raise RuntimeError("a consumer is entered once")
        try:
            self._desk = await self._attend(self)
        except BaseException:
            self.close(LEFT)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._desk is None:
            return
        if isinstance(error, Exception) and not isinstance(error, ConsumerClosed):
            self.lose(f"its consumer ended by {reason_of(error)}")
        else:
            self.leave()
        await self.gone()

    def leave(self) -> None:
        """It takes nothing more, and what it has goes to others; `gone` follows."""
        self.desk.leave(self)
        self.close(LEFT)

    def lose(self, reason: str) -> None:
        """It has vanished: what its user had counts as an attempt, with this reason; `gone` follows."""
        self.desk.lose_consumer(self, reason)
        self.close(LEFT)

    async def gone(self) -> None:
        """Returns when what it settled is stored, and others can have the subscription if it was the last here."""
        await self._left(self)

    @property
    def desk(self) -> "Desk":
        """Where its deliveries come from."""
        if self._desk is None:
            raise RuntimeError("a consumer is used inside `async with`")
        return self._desk

    @property
    def journal(self) -> Journal:
        """What is logged of its subscription."""
        return self.desk.journal

    @property
    def standby(self) -> bool:
        """Whether another process owns the subscription: this one takes over when that leaves."""
        return self.desk.standby

    @property
    def closed(self) -> str | None:
        """Why it has ended, in the words of `ConsumerClosed.reason`; None: it has not."""
        return self._closed

    def close(self, reason: str) -> None:
        """It gets nothing more, and is told why; for the desk. The first reason holds."""
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
        if now - delivery.since > self.desk.patience:
            self.desk.restart(delivery.claim)

    async def batches(self, limit: int = 100) -> AsyncIterator[list[Delivery]]:
        """Deliveries as they come, in lists: what is there, at most so many, without waiting for more."""
        with suppress(_Drained):
            while True:
                yield await self.next_batch(limit)

    async def next_batch(self, limit: int = 100) -> list[Delivery]:
        """The next of these lists; raises `ConsumerClosed` when there is none."""
        checked("limit", BATCH_LIMIT, limit)
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
            self._closed = DRAINED
        if self._closed == DRAINED:
            raise _Drained(DRAINED)
        if self._closed is not None:
            raise ConsumerClosed(self._closed)
        self._news.clear()
        await self._news.wait()

    def take(self, claims: Sequence[AnyClaim]) -> None:
        """Deliveries have come; for the desk."""
        now, settled = monotonic(), self._allowance.settled
        for claim in claims:
            claim.held_after = settled
            self._arrived.append(Delivery(claim, self, now))
        self._news.set()

    def untaken(self) -> list[AnyClaim]:
        """What has come and nobody has looked at, which goes back; for the desk."""
        claims = [delivery.claim for delivery in self._arrived if delivery.claim.is_in_force]
        self._arrived.clear()
        self._news.set()
        return claims

    def recall(self) -> list[AnyClaim]:
        """Nothing is to run for a moment: returns what nobody has looked at, which goes back; for the desk.

        Who has handed it on is told to give back what nobody has begun with.
        """
        if self._told_recalled is not None:
            self._told_recalled()
        return self.untaken()

    def look(self) -> None:
        """Something that it had is no longer its own; for the desk."""
        self._news.set()

    def tell_lost(self, claims: Sequence[AnyClaim], reason: str) -> None:
        """These are no longer its own, and it has not settled them; for the desk."""
        if self._told_lost is not None:
            self._told_lost(claims, reason)
        arrived = [delivery for delivery in self._arrived if delivery.claim.is_in_force]
        self._arrived.clear()
        self._arrived.extend(arrived)
        self._news.set()

    def route_of(self, claim: AnyClaim) -> str:
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
            self.desk.settler.acks_soon(self)
        self._acked.append(claim)
        self._latencies.append(monotonic() - (claim.begun or delivery.since))
        return True

    def take_acked(self) -> tuple[list[AnyClaim], list[float]]:
        """What is done since this was last asked, and how long each took; for the desk."""
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
    ) -> Settled:
        """Settles several at once; tells which were refused, since they are no longer this consumer's.

        `after` is for those that are tried again, as `reason` is for all but those that are done.
        """
        moved: list[int] = []
        refused: list[int] = []
        words: dict[str, Any] = {"reason": reason}
        # All of it is looked at before anything is settled.
        checked("after", RETRY_AFTER, after)
        given: tuple[tuple[How, list[Delivery], dict[str, Any]], ...] = (
            ("ack", instances("ack", Delivery, ack), {}),
            ("retry", instances("retry", Delivery, retry), {**words, "after": after}),
            ("park", instances("park", Delivery, park), words),
            ("skip", instances("skip", Delivery, skip), words),
        )
        for how, asked, with_words in given:
            late = set(self.settled(how, asked, **with_words)) if asked else set[Delivery]()
            moved += [each.position for each in asked if each not in late]
            refused += [each.position for each in asked if each in late]
        return Settled(tuple(moved), tuple(refused))

    def settled(self, how: How, deliveries: Sequence[Delivery], **words: Any) -> list[Delivery]:
        """Settles deliveries in one way; returns those that were refused."""
        now = monotonic()
        open_: list[AnyClaim] = []
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
            self.desk.settler.settle(self, how, open_, latencies, **words)
        return refused

    def extend(self, deliveries: Sequence[Delivery], seconds: float) -> list[Delivery]:
        """Gives deliveries so many seconds from now; returns those that were refused."""
        open_ = {each for each in deliveries if each.is_open}
        self._allowance.live()
        self.desk.extend([each.claim for each in open_], seconds)
        return [each for each in deliveries if each not in open_]

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Its user does not have them: they go out again, and are no attempts."""
        self.desk.give_back([each.claim for each in deliveries if not each.settled])

    def stop(self) -> None:
        """It ends: what it has goes to others."""
        self.desk.leave(self)
        self.close(STOPPED)

    def why_refused(self, delivery: Delivery) -> str:
        """Why a delivery could not be settled, as the end of a sentence."""
        if delivery.settled:
            return "was settled before"
        if self._closed is not None:
            return f"is no longer this consumer's, which has ended: {self._closed}"
        if self.desk.is_overdue(delivery.claim):
            return "timed out: it may be with another consumer by now"
        return (
            "is no longer this consumer's: it was late, an operator took it back, or the connection to the "
            "database was lost; it comes again"
        )

    # Time

    def late(self, overdue: Sequence[AnyClaim], held: Sequence[AnyClaim], *, apart: int) -> list[AnyClaim]:
        """It was late with some of what it holds, or late to look at it: returns what it is not to have.

        Of what it looked at that is what it can hardly have begun with. `apart` is how many it has beside these,
        since it asked for much more time.
        """
        allowance = self._allowance
        unseen = [claim for claim in overdue if claim.begun is None]
        if allowance.most is None and len(held) <= FEW:
            return unseen
        allowance.limit(min(claim.held_after for claim in overdue), self.desk.created.declaration.timeout)
        self._apart = apart
        self.desk.reroute(self, self.core_routes)
        self.desk.doubt(self)
        if len(unseen) == len(overdue):
            return unseen
        return list(dict.fromkeys([*unseen, *held[max(FEW, allowance.most or 0) :]]))

    def has_settled(self, count: int) -> None:
        """Its user has said what becomes of so many; for the desk."""
        allowance = self._allowance
        if allowance.settle(count, self._routing.capacity):
            self.desk.reroute(self, self.core_routes)
            if allowance.most is None:
                self.desk.trust(self)

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
    def core_routes(self) -> list[Route]:
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
        if self._closed == DRAINED:
            return
        self._refuse_if_closed()
        self._draining = True
        self.desk.reroute(self, [])
        self._news.set()

    def suspend(self) -> None:
        """Gets nothing new until it goes on, and what nobody has looked at goes to others. What it has stays."""
        self._suspended = True
        self.desk.reroute(self, [])
        self.desk.give_back(self.untaken())

    def go_on(self) -> None:
        """Gets deliveries again."""
        self._suspended = False
        self.desk.reroute(self, self.core_routes)

    def _reroute(self, routing: Routing) -> None:
        self._refuse_if_closed()
        if not self._draining and not self._suspended:
            self.desk.reroute(self, routing.named(self._most))
        self._routing = routing

    def _refuse_if_closed(self) -> None:
        if self._closed is not None:
            raise ConsumerClosed(self._closed)

    # Looking

    @property
    def in_flight(self) -> int:
        """How many deliveries it has."""
        return self.desk.in_flight_of(self) - len(self._acked)

    def statistics(self) -> ConsumerStatistics:
        """What it has, how fast it is, what failed last. Asking changes nothing."""
        # What was acked in this step of the loop counts.
        self.desk.settler.flush()
        return self.told(self.in_flight)

    def told(self, in_flight: int) -> ConsumerStatistics:
        """The same, with so many deliveries; for the desk."""
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
