"""What happens around workers: processes, people, consumers, definitions."""

from dataclasses import dataclass
from functools import cache

from dispatch.simulation import settling
from dispatch.simulation.consumers import FILTERS
from dispatch.simulation.holding import Holding
from dispatch.simulation.message import ORDERS
from dispatch.simulation.setup import OnPark
from dispatch.simulation.worker import Worker
from dispatch.simulation.world import World
from milepost.dispatch.delivery import State
from milepost.dispatch.routing.route import Route

WORKERS = 3


@dataclass(frozen=True)
class Start:
    """A process starts."""

    def run(self, world: World) -> None:
        if len(world.workers) < WORKERS:
            world.start()


@dataclass(frozen=True)
class Kill:
    """A process dies, whatever it was doing."""

    worker: int = 0

    def run(self, world: World) -> None:
        if (worker := world.worker(self.worker)) is not None:
            del world.workers[worker.number]


@dataclass(frozen=True)
class Take:
    """A worker takes a lane that is free or whose owner is dead; by force, also from one that lives."""

    worker: int = 0
    lane: int = 0
    by_force: bool = False

    def run(self, world: World) -> None:
        worker, lane = world.worker(self.worker), self.lane % world.setup.lanes
        owner = world.store.lanes[lane].owner
        if worker is not None and worker.may_take(lane, owner in world.workers, self.by_force):
            worker.take(lane)


@dataclass(frozen=True)
class Release:
    """A worker leaves a lane in good order."""

    worker: int = 0
    lane: int = 0

    def run(self, world: World) -> None:
        if (found := world.holding(self.worker, self.lane)) is not None:
            found[0].release(found[1])


@dataclass(frozen=True)
class Forget:
    """A worker does not learn how its exchange ended: it reads the lane again."""

    worker: int = 0
    lane: int = 0

    def run(self, world: World) -> None:
        found = world.holding(self.worker, self.lane)
        if found is None or found[1].under_way is None:
            return
        worker, holding = found
        lives = world.store.lanes[holding.number].owner in world.workers
        worker.drop(holding.number)
        if worker.may_take(holding.number, lives, by_force=False):
            worker.take(holding.number)


# Lives of the server


@dataclass(frozen=True)
class GoBack:
    """The server loses its newest transactions, so many or all that there were, and begins another life."""

    lost: int = 0

    def run(self, world: World) -> None:
        world.server.go_back(self.lost)


@dataclass(frozen=True)
class Notice:
    """A worker looks at the log, and learns which life that has."""

    worker: int = 0

    def run(self, world: World) -> None:
        if (worker := world.worker(self.worker)) is not None:
            worker.notice()


# People


@dataclass(frozen=True)
class Person:
    """Changes the row that `which` picks; the owner hears of it at once, or later."""

    which: int = 0
    poke: bool = True

    def pick(self, world: World, *states: State) -> tuple[int, int] | None:
        rows = [
            (record.number, row.position)
            for record in world.store.lanes
            for row in record.rows.values()
            if row.state in states
        ]
        return rows[self.which % len(rows)] if rows else None

    def tell(self, world: World, lane: int, position: int) -> None:
        owner = world.owner(lane)
        if owner is not None:
            owner.unpoked.add(position)
            if self.poke:
                poke(owner)


@dataclass(frozen=True)
class RetryRow(Person):
    """A person retries a parked or retrying message."""

    def run(self, world: World) -> None:
        found = self.pick(world, State.PARKED, State.RETRYING)
        if found is None:
            return
        lane, position = found
        row = world.store.lanes[lane].rows[position]
        world.store.retry(lane, position)
        owner = world.owner(lane)
        if owner is not None and row.state is State.PARKED and owner.settings.on_park == "continue":
            owner.untold[position] = row.revision + 1
        self.tell(world, lane, position)


@dataclass(frozen=True)
class SkipRow(Person):
    """A person passes a message over."""

    def run(self, world: World) -> None:
        found = self.pick(world, *(state for state in State if state is not State.SKIPPED))
        if found is not None:
            world.store.skip(*found)
            self.tell(world, *found)


@dataclass(frozen=True)
class MoveCursor:
    """A person moves a lane, to a share of the log in hundredths."""

    lane: int = 0
    to: int = 0

    def run(self, world: World) -> None:
        store = world.store
        store.move(self.lane % world.setup.lanes, store.log.horizon * self.to // 100)


@dataclass(frozen=True)
class Poke:
    """All owners hear that people have acted."""

    def run(self, world: World) -> None:
        for record in world.store.lanes:
            if (owner := world.owner(record.number)) is not None:
                poke(owner)


def poke(owner: Holding) -> None:
    """An owner hears that people have acted."""
    owner.lane.poke()
    owner.unpoked.clear()


# Consumers


@dataclass(frozen=True)
class Wish:
    """A route, by numbers."""

    filter: int = 0
    priority: int = 0
    capacity: int = 2
    bytes: int = 1000

    @cache  # noqa: B019 - a wish is a value
    def route(self, number: int) -> Route:
        """The route, which is compiled once."""
        return Route(
            FILTERS[self.filter],
            priority=self.priority,
            capacity=self.capacity,
            capacity_bytes=self.bytes,
            name=f"r{number}",
        )


@dataclass(frozen=True)
class Join:
    """A consumer comes, or changes its routes if it is here."""

    worker: int = 0
    name: int = 0
    wishes: tuple[Wish, ...] = (Wish(),)

    def run(self, world: World) -> None:
        found = world.holding(self.worker, 0)
        if found is None or not found[1].routed:
            return
        holding, name = found[1], f"c{self.name}"
        routes = [wish.route(number) for number, wish in enumerate(self.wishes)]
        if name in holding.consumers.routes:
            holding.lane.configure(name, routes)
        else:
            holding.lane.join(name, routes)
        holding.consumers.join(name, routes)


@dataclass(frozen=True)
class Leave:
    """A consumer goes in good order."""

    worker: int = 0
    name: int = 0

    def run(self, world: World) -> None:
        if (found := consumer(world, self.worker, self.name)) is not None:
            settling.leave(found[1], found[2])


@dataclass(frozen=True)
class Lose:
    """A consumer vanishes."""

    worker: int = 0
    name: int = 0

    def run(self, world: World) -> None:
        if (found := consumer(world, self.worker, self.name)) is not None:
            settling.lose(found[1], found[2])
            found[0].stall()


@dataclass(frozen=True)
class Doubt:
    """A consumer was late, or keeps up again."""

    worker: int = 0
    name: int = 0
    ends: bool = False

    def run(self, world: World) -> None:
        if (found := consumer(world, self.worker, self.name)) is not None:
            _, holding, name = found
            if self.ends:
                holding.lane.trust(name)
                holding.consumers.trust(name)
            else:
                holding.lane.doubt(name)
                holding.consumers.doubt(name)


def consumer(world: World, worker: int, name: int) -> tuple[Worker, Holding, str] | None:
    """A consumer of a worker, by any numbers."""
    found = world.holding(worker, 0)
    if found is None or not found[1].consumers.routes:
        return None
    names = list(found[1].consumers.routes)
    return *found, names[name % len(names)]


# Definitions


@dataclass(frozen=True)
class Redefine:
    """Workers that start from now on have another definition."""

    rejected: tuple[int, ...] = ()
    blocks: bool = True
    window: int = 10
    attempts: int = 3

    def run(self, world: World) -> None:
        rejected, on_park = frozenset(self.rejected), _on_park(self.blocks)
        world.definition = world.definition.changed(rejected, on_park, self.window, self.attempts)


@dataclass(frozen=True)
class Change:
    """A lane gets other settings while it runs."""

    worker: int = 0
    lane: int = 0
    blocks: bool | None = None
    """Whether a parked message holds its key; None: as before."""
    window: int = 10
    attempts: int = 3

    def run(self, world: World) -> None:
        if (found := world.holding(self.worker, self.lane)) is None:
            return
        worker, holding = found
        on_park = holding.settings.on_park if self.blocks is None else _on_park(self.blocks)
        changed = worker.definition.changed(worker.definition.rejected, on_park, self.window, self.attempts)
        holding.change(changed.settings)


@dataclass(frozen=True)
class Reorder:
    """The messages of the only lane are kept in order by something else, whatever is out."""

    worker: int = 0
    order: int = 0

    def run(self, world: World) -> None:
        found = world.holding(self.worker, 0)
        if found is None or world.setup.lanes > 1 or not found[1].current:
            return
        _, holding = found
        order = ORDERS[self.order % len(ORDERS)]
        if holding.under_way is None and order != holding.order:
            holding.reorder(order)


def _on_park(blocks: bool) -> OnPark:
    return "block" if blocks else "continue"
