"""Blocking consumers and deliveries: each call waits for the async one."""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from milepost.dispatch import Route
from milepost.engine.checks import instances
from milepost.engine.consumers.consumer import Consumer, ConsumerSettleResult
from milepost.engine.consumers.delivery import Delivery
from milepost.engine.observe.statistics import ConsumerStatistics
from milepost.errors import ConsumerClosed
from milepost.log.message import Message

R = TypeVar("R")


class CoroutineRunner(Protocol):
    """Runs a coroutine where the async consumer lives, and waits for its result."""

    def __call__(self, coroutine: Coroutine[Any, Any, R], /) -> R:
        """The coroutine's result."""
        ...


class _SyncDrained(ConsumerClosed, StopIteration):
    """Ends the loop over a consumer that was drained."""


class SyncDelivery:
    """One message on its way to one consumer: it is settled once, within its time-out.

    As a block it gives the message: `ack` when the block ends, `retry` when it raises, or what `Park`, `Skip` and
    `RetryLater` say. The error is stored with the message and logged; the loop goes on.
    """

    __slots__ = ("_waits", "delivery")

    def __init__(self, delivery: Delivery, waits: CoroutineRunner) -> None:
        self.delivery = delivery
        """The async one."""
        self._waits = waits

    @property
    def message(self) -> Message[Any]:
        """What it is about."""
        return self.delivery.message

    @property
    def position(self) -> int:
        """Of the message, in the log."""
        return self.delivery.position

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self.delivery.attempt

    @property
    def route(self) -> str:
        """The consumer's route that matched: its name, or its expression."""
        return self.delivery.route

    @property
    def replay(self) -> bool:
        """Whether the message had been handled before, and is repeated on purpose."""
        return self.delivery.replay

    def ack(self) -> None:
        """It is done. Raises `Lost` if it is no longer this consumer's."""
        self._waits(self.delivery.ack())

    def retry(self, after: float | None = None, reason: str = "", *, count: bool = True) -> None:
        """It failed: it comes again after so many seconds, or as the subscription's policy says.

        With `count=False` it is no attempt, and comes again after `after` seconds, at once by default.
        """
        self._waits(self.delivery.retry(after, reason, count=count))

    def park(self, reason: str = "") -> None:
        """It is given up until a person decides."""
        self._waits(self.delivery.park(reason))

    def skip(self, reason: str = "") -> None:
        """It is not wanted: it is done."""
        self._waits(self.delivery.skip(reason))

    def stop(self, reason: str = "") -> None:
        """It comes again, which counts as an attempt, and this consumer ends: what else it has goes to others."""
        self._waits(self.delivery.stop(reason))

    def extend(self, seconds: float) -> None:
        """It times out so many seconds from now."""
        self._waits(self.delivery.extend(seconds))

    def __enter__(self) -> Message[Any]:
        return self.delivery.message

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self._waits(self.delivery.__aexit__(kind, error, trace))

    def __repr__(self) -> str:
        return repr(self.delivery)


class SyncConsumer:
    """Deliveries as they come, from the beginning of a block to its end: `for delivery in consumer`.

    Several threads may take from one consumer: each delivery goes to one of them. What is open when the block ends
    goes to others at once, and is no attempt. Only if it ends by an error, what the consumer had taken counts.
    """

    def __init__(self, consumer: Consumer, open_: Callable[[], CoroutineRunner]) -> None:
        self._consumer = consumer
        self._open = open_
        self._opened: CoroutineRunner | None = None

    def __enter__(self) -> Self:
        waits = self._open()
        waits(self._consumer.__aenter__())
        self._opened = waits
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waits(self._consumer.__aexit__(kind, error, trace))

    @property
    def _waits(self) -> CoroutineRunner:
        if self._opened is None:
            raise RuntimeError("a consumer is used inside `with`")
        return self._opened

    # Taking

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SyncDelivery:
        waits = self._waits
        try:
            return SyncDelivery(waits(self._consumer.__anext__()), waits)
        except StopAsyncIteration as drained:
            raise _SyncDrained(str(self.closed)) from drained

    def batches(self, limit: int = 100) -> Iterator[list[SyncDelivery]]:
        """Deliveries as they come, in lists: what is there, at most so many, without waiting for more."""
        waits = self._waits
        while True:
            try:
                batch = waits(self._consumer.next_batch(limit))
            except StopAsyncIteration:
                return
            yield [SyncDelivery(delivery, waits) for delivery in batch]

    # Settling

    def settle(
        self,
        *,
        ack: Iterable[SyncDelivery] = (),
        retry: Iterable[SyncDelivery] = (),
        park: Iterable[SyncDelivery] = (),
        skip: Iterable[SyncDelivery] = (),
        after: float | None = None,
        reason: str = "",
    ) -> ConsumerSettleResult:
        """Settles several at once; tells which were refused, since they are no longer this consumer's.

        `after` is for those that are tried again, as `reason` is for all but those that are done.
        """
        return self._waits(
            self._consumer.settle(
                ack=_async_deliveries("ack", ack),
                retry=_async_deliveries("retry", retry),
                park=_async_deliveries("park", park),
                skip=_async_deliveries("skip", skip),
                after=after,
                reason=reason,
            )
        )

    # Changing

    def configure(self, *, routes: Sequence[Route] | None = None, **options: Any) -> None:
        """Other routes from now on, or of the only one another filter, priority or capacity. What it has stays.

        What cannot be is refused, and everything stays as it was.
        """
        self._waits(self._consumer.configure(routes=routes, **options))

    def add(self, route: Route) -> None:
        """One more route."""
        self._waits(self._consumer.add(route))

    def remove(self, route: Route) -> None:
        """One route less; what came by it stays. ValueError if there is no such route, or it is the only one."""
        self._waits(self._consumer.remove(route))

    def drain(self) -> None:
        """Gets nothing new; what it has is still to be settled, and then the loop over it ends."""
        self._waits(self._consumer.drain())

    # Looking

    @property
    def name(self) -> str:
        """The machine, the process and a name of its own."""
        return self._consumer.name

    @property
    def routes(self) -> tuple[Route, ...]:
        """What it asks for."""
        return self._consumer.routes

    @property
    def standby(self) -> bool:
        """Whether another process owns the subscription: this one takes over when that leaves."""
        return self._consumer.standby

    @property
    def closed(self) -> str | None:
        """Why it has ended, in the words of `ConsumerClosed.reason`; None: it has not."""
        return self._consumer.closed

    @property
    def in_flight(self) -> int:
        """How many deliveries it has."""
        return self.statistics().in_flight

    def statistics(self) -> ConsumerStatistics:
        """What it has, how fast it is, what failed last. Asking changes nothing."""
        return self._waits(_statistics_of(self._consumer))


async def _statistics_of(consumer: Consumer) -> ConsumerStatistics:
    return consumer.statistics()


def _async_deliveries(name: str, deliveries: Iterable[SyncDelivery]) -> list[Delivery]:
    return [each.delivery for each in instances(name, SyncDelivery, deliveries)]
