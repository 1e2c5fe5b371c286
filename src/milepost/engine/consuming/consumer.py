"""A consumer: takes deliveries of a subscription, as many as it has room for, and settles them."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import msgspec

from milepost.dispatch import Delivery as Claim
from milepost.dispatch import Route
from milepost.engine.consuming.delivery import Delivery
from milepost.engine.consuming.statistics import ConsumerStatistics, Numbers
from milepost.engine.journal import Journal
from milepost.errors import ConsumerClosed
from milepost.log.message import Message

if TYPE_CHECKING:
    from milepost.engine.consuming.desk import Desk

OPTIONS = ("where", "priority", "capacity", "capacity_bytes")
"""Of a consumer that has one route."""


class Settled(msgspec.Struct, frozen=True):
    """What came of settling several deliveries."""

    moved: tuple[int, ...]
    """The positions of those that were settled."""
    refused: tuple[int, ...]
    """Those that are no longer this consumer's."""


class Consumer:
    """Deliveries as they come, from the beginning of a block to its end: `async for delivery in consumer`.

    What is open when the block ends goes to others at once, and is no attempt.
    """

    def __init__(
        self,
        attend: Callable[["Consumer"], Awaitable["Desk"]],
        left: Callable[["Consumer"], Awaitable[None]],
        routes: Sequence[Route],
    ) -> None:
        self.name = uuid4().hex
        self.routes = list(routes)
        self._attend = attend
        self._left = left
        self._desk: Desk | None = None
        self._arrived: deque[Delivery] = deque()
        self._news = asyncio.Event()
        self._closed: str | None = None
        self._draining = False
        self._taken_at: dict[Claim[Message[Any]], float] = {}
        self.numbers = Numbers()

    # Coming and going

    async def __aenter__(self) -> Self:
        if self._desk is not None:
            raise RuntimeError("a consumer is entered once")
        self._desk = await self._attend(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._desk is not None:
            self.close(self._closed or "left")
            self._desk.leave(self)
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

    # Taking

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        while True:
            if self._arrived:
                return self._arrived.popleft()
            if self._draining and not self._taken_at:
                raise StopAsyncIteration
            if self._closed is not None:
                raise ConsumerClosed(self._closed)
            self._news.clear()
            await self._news.wait()

    def take(self, claims: Sequence[Claim[Message[Any]]]) -> None:
        """Deliveries have come; for the desk."""
        now = monotonic()
        for claim in claims:
            self._arrived.append(Delivery(claim, self))
            self._taken_at[claim] = now
        self.numbers.delivered(len(claims))
        self._news.set()

    def gone(self, claims: Iterable[Claim[Message[Any]]]) -> None:
        """These are no longer this consumer's; for the desk."""
        lost = [claim for claim in claims if self._taken_at.pop(claim, None) is not None]
        if not lost:
            return
        unseen = set(lost)
        self._arrived = deque(each for each in self._arrived if each.claim not in unseen)
        self._news.set()

    def give_back_unseen(self) -> list[Claim[Message[Any]]]:
        """What has come and nobody has looked at; for the desk."""
        unseen = [delivery.claim for delivery in self._arrived]
        self.gone(unseen)
        return unseen

    def close(self, reason: str) -> None:
        """It gets nothing more, and is told why; for the desk."""
        self.lose_all()
        self._closed = reason
        self._news.set()

    def lose_all(self) -> None:
        """Nothing that it has is its own any more; for the desk."""
        self.gone(list(self._taken_at))

    # Settling

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
        """Settles several at once; tells which were refused, since they are no longer this consumer's."""
        moved: list[int] = []
        refused: list[int] = []
        for how, deliveries in (("ack", ack), ("retry", retry), ("park", park), ("skip", skip)):
            given = list(deliveries)
            words: dict[str, Any] = {} if how == "ack" else {"reason": reason}
            if how == "retry":
                words["after"] = after
            late = {each.position for each in self.settled(how, given, **words)} if given else set()
            moved += [each.position for each in given if each.position not in late]
            refused += sorted(late)
        return Settled(tuple(moved), tuple(refused))

    def settled(self, how: str, deliveries: Sequence[Delivery], **words: Any) -> list[Delivery]:
        """Settles deliveries in one way; returns those that were refused."""
        now = monotonic()
        mine = [each for each in deliveries if each.claim in self._taken_at]
        taken = {each.claim: self._taken_at.pop(each.claim) for each in mine}
        refused = self.desk.settle(how, list(taken), **words)
        for claim, since in taken.items():
            if claim not in refused:
                self.numbers.settled(how, now - since)
        self._news.set()
        if how == "stop" and mine:
            self._closed = "stopped"
        ours = {each.claim for each in mine}
        return [each for each in deliveries if each.claim not in ours or each.claim in refused]

    def extend(self, deliveries: Sequence[Delivery], seconds: float) -> list[Delivery]:
        """Gives deliveries so many seconds from now; returns those that were refused."""
        mine = [each for each in deliveries if each.claim in self._taken_at]
        refused = self.desk.extend([each.claim for each in mine], seconds)
        return [each for each in deliveries if each not in mine or each.claim in refused]

    def complain(self, delivery: Delivery, error: BaseException) -> bool:
        """A block that handled a delivery raised; it is logged."""
        self.numbers.error = f"{type(error).__name__}: {error}"
        self.journal.warning(
            "position %d failed at attempt %d: %s", delivery.position, delivery.attempt, self.numbers.error
        )
        return True

    # Changing

    async def configure(self, *, routes: Sequence[Route] | None = None, **options: Any) -> None:
        """Other routes from now on, or of the only one another filter, priority or capacity. What it has stays."""
        await self._reroute(list(routes) if routes is not None else [changed(self.routes, options)])

    async def add(self, route: Route) -> None:
        """One more route."""
        await self._reroute([*self.routes, route])

    async def remove(self, route: Route) -> None:
        """One route less; what came by it stays. ValueError if there is no such route."""
        if route not in self.routes:
            raise ValueError(f"this consumer has no route {str(route)!r}")
        await self._reroute([each for each in self.routes if each != route])

    async def drain(self) -> None:
        """Gets nothing new; what it has is still to be settled, and then the loop over it ends."""
        self._draining = True
        self.desk.reroute(self, [])
        self._news.set()

    async def _reroute(self, routes: list[Route]) -> None:
        self.desk.reroute(self, routes)
        self.routes = routes

    def statistics(self) -> ConsumerStatistics:
        """What it has, how fast it is, what failed last. Asking changes nothing."""
        return self.numbers.told(self.name, len(self._taken_at))


def changed(routes: Sequence[Route], options: dict[str, Any]) -> Route:
    """The only route of a consumer with other options."""
    if len(routes) != 1:
        raise ValueError("this consumer has several routes: configure it with routes=[…]")
    [only] = routes
    values = {name: getattr(only, name) for name in OPTIONS}
    for name in options:
        if name not in OPTIONS:
            raise TypeError(f"a route has no option {name!r}: {', '.join(OPTIONS)} are wanted")
    return Route(**{**values, **options}, name=only.name)
