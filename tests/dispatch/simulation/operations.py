"""The steps of a schedule: each is a plain record, and does what it can with what there is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dispatch.simulation import settling
from dispatch.simulation.holding import Holding
from dispatch.simulation.message import Message
from dispatch.simulation.pump import pump
from dispatch.simulation.setup import CAUSES
from dispatch.simulation.world import World
from milepost.dispatch.delivery import LaneDelivery

NUMBERS = 6


class Operation(Protocol):
    """One step."""

    def run(self, world: World) -> None: ...


@dataclass(frozen=True)
class Append:
    """Messages come, with keys and numbers one after the other."""

    count: int = 1
    key: int = 0
    number: int = 0
    size: int = 1
    gap: int = 0

    def run(self, world: World) -> None:
        for i in range(self.count):
            key, number = (self.key + i) % world.setup.keys, (self.number + i) % NUMBERS
            world.store.append(key, number, self.size, self.gap)


@dataclass(frozen=True)
class Pass:
    """Time passes."""

    seconds: float = 1.0

    def run(self, world: World) -> None:
        world.store.now += self.seconds


@dataclass(frozen=True)
class Fill:
    """A page is read, from `before` positions too early, `beyond` positions further than its last message."""

    worker: int = 0
    lane: int = 0
    size: int = 10
    before: int = 0
    beyond: int = 0

    def run(self, world: World) -> None:
        if (found := world.holding(self.worker, self.lane)) is None:
            return
        worker, holding = found
        if (page := worker.read(holding, self.size, self.before, self.beyond)) is not None:
            worker.fill(holding.number, page)
            world.note("reach", holding.lane.reach)


@dataclass(frozen=True)
class Read(Fill):
    """A page is read, and filled in later."""

    def run(self, world: World) -> None:
        if (found := world.holding(self.worker, self.lane)) is None:
            return
        worker, holding = found
        if (page := worker.read(holding, self.size, self.before, self.beyond)) is not None:
            worker.pages[holding.number] = page


@dataclass(frozen=True)
class FillIn:
    """A page that was read earlier is filled in, if the lane stands where that covers it."""

    worker: int = 0
    lane: int = 0

    def run(self, world: World) -> None:
        worker, lane = world.worker(self.worker), self.lane % world.setup.lanes
        if worker is not None and (page := worker.pages.pop(lane, None)) is not None:
            world.note("filled", worker.fill(lane, page))


@dataclass(frozen=True)
class Next:
    """Messages are handed out."""

    worker: int = 0
    lane: int = 0
    limit: int = 10

    def run(self, world: World) -> None:
        if (found := world.holding(self.worker, self.lane)) is not None:
            given = found[0].next(found[1], self.limit)
            world.note("next", *((delivery.message.position, delivery.consumer) for delivery in given))


@dataclass(frozen=True)
class Settle:
    """Deliveries are settled; `which` picks the first of them, `twice` settles them again."""

    worker: int = 0
    lane: int = 0
    which: int = 0
    count: int = 1
    twice: bool = False

    def run(self, world: World) -> None:
        if (found := world.holding(self.worker, self.lane)) is None:
            return
        holding = found[1]
        deliveries = _some(holding, self.which, self.count)
        if deliveries:
            self.settle(holding, [*deliveries, *deliveries] if self.twice else deliveries)
            found[0].stall()

    def settle(self, holding: Holding, deliveries: Sequence[LaneDelivery[Message]]) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Ack(Settle):
    """They are done."""

    def settle(self, holding: Holding, deliveries: Sequence[LaneDelivery[Message]]) -> None:
        settling.ack(holding, deliveries)


@dataclass(frozen=True)
class Retry(Settle):
    """They failed."""

    after: float | None = None
    counted: bool = True
    cause: int = 0

    def settle(self, holding: Holding, deliveries: Sequence[LaneDelivery[Message]]) -> None:
        settling.retry(holding, deliveries, self.after, self.counted, CAUSES[self.cause])


@dataclass(frozen=True)
class Park(Settle):
    """They are given up."""

    def settle(self, holding: Holding, deliveries: Sequence[LaneDelivery[Message]]) -> None:
        settling.park(holding, deliveries)


@dataclass(frozen=True)
class GiveBack(Settle):
    """They were not tried."""

    def settle(self, holding: Holding, deliveries: Sequence[LaneDelivery[Message]]) -> None:
        settling.give_back(holding, deliveries)


@dataclass(frozen=True)
class Extend(Settle):
    """They get more time."""

    seconds: float = 5.0

    def settle(self, holding: Holding, deliveries: Sequence[LaneDelivery[Message]]) -> None:
        settling.extend(holding, deliveries, self.seconds)


@dataclass(frozen=True)
class Stop(Settle):
    """One is tried again, and its consumer gets no more."""

    def settle(self, holding: Holding, deliveries: Sequence[LaneDelivery[Message]]) -> None:
        settling.stop(holding, deliveries[0])


@dataclass(frozen=True)
class Late:
    """Claims that have ended are settled, in the way that `how` says: all of it is refused."""

    worker: int = 0
    lane: int = 0
    which: int = 0
    how: int = 0

    def run(self, world: World) -> None:
        found = world.holding(self.worker, self.lane)
        if found is None or not found[1].past:
            return
        holding = found[1]
        old = [holding.past[self.which % len(holding.past)]]
        ways = (
            lambda: settling.ack(holding, old),
            lambda: settling.retry(holding, old),
            lambda: settling.park(holding, old),
            lambda: settling.give_back(holding, old),
            lambda: settling.extend(holding, old, 3),
            lambda: settling.stop(holding, old[0]),
        )
        ways[self.how % len(ways)]()


@dataclass(frozen=True)
class Expire:
    """Time-outs are looked at."""

    worker: int = 0
    lane: int = 0

    def run(self, world: World) -> None:
        if (found := world.holding(self.worker, self.lane)) is not None:
            settling.expire(found[1])
            found[0].stall()


@dataclass(frozen=True)
class Make:
    """An exchange begins, with so many deliveries that it settles itself."""

    worker: int = 0
    lane: int = 0
    commits: int = 0

    def run(self, world: World) -> None:
        if (found := world.holding(self.worker, self.lane)) is None:
            return
        holding = found[1]
        local = holding.under_way is None and not holding.routed
        exchange = holding.make(list(holding.open)[: self.commits] if local else ())
        world.note("exchange", exchange and (exchange.write, exchange.ask))


@dataclass(frozen=True)
class Commit:
    """The exchange under way commits, or is refused: then the lane is thrown away."""

    worker: int = 0
    lane: int = 0

    def run(self, world: World) -> None:
        found = world.holding(self.worker, self.lane)
        if found is not None and not found[1].commit():
            found[0].drop(found[1].number)


@dataclass(frozen=True)
class Learn:
    """The answer to what was committed arrives."""

    worker: int = 0
    lane: int = 0

    def run(self, world: World) -> None:
        if (found := world.holding(self.worker, self.lane)) is not None:
            if not found[1].learn():
                found[0].drop(found[1].number)
            found[0].stall()


@dataclass(frozen=True)
class Swap(Make):
    """An exchange from beginning to end."""

    def run(self, world: World) -> None:
        found = world.holding(self.worker, self.lane)
        super().run(world)
        if found is not None:
            found[0].swap(found[1])
            found[0].stall()


@dataclass(frozen=True)
class Abandon:
    """The exchange under way is rolled back."""

    worker: int = 0
    lane: int = 0

    def run(self, world: World) -> None:
        if (found := world.holding(self.worker, self.lane)) is not None:
            found[1].abandon()


@dataclass(frozen=True)
class Pump:
    """A worker goes on until there is nothing to do."""

    worker: int = 0
    fill: bool = True
    lazy: bool = False

    def run(self, world: World) -> None:
        if (worker := world.worker(self.worker)) is not None:
            pump(world, worker, fill=self.fill, lazy=self.lazy)


def _some(holding: Holding, which: int, count: int) -> list[LaneDelivery[Message]]:
    deliveries = list(holding.open)
    if not deliveries:
        return []
    start = which % len(deliveries)
    return (deliveries[start:] + deliveries[:start])[:count]
