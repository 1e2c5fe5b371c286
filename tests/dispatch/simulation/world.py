"""The store, the workers on it, and what they put out."""

from dispatch.simulation.holding import Holding
from dispatch.simulation.routing import check_unrouted
from dispatch.simulation.server import Server
from dispatch.simulation.setup import Setup
from dispatch.simulation.store import Store
from dispatch.simulation.worker import Worker


class World:
    """Everything that a schedule acts on."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.server = Server(Store(setup))
        self.definition = setup.definition()
        self.workers: dict[int, Worker] = {}
        self.trace: list[tuple[object, ...]] = []
        """What came out, so that two runs can be compared."""
        self._started = 0

    @property
    def store(self) -> Store:
        """The store in its present life."""
        return self.server.store

    def start(self) -> Worker:
        """A new process, with the newest definition."""
        self._started += 1
        worker = self.workers[self._started] = Worker(self.server, self._started, self.definition)
        return worker

    def worker(self, index: int) -> Worker | None:
        workers = list(self.workers.values())
        return workers[index % len(workers)] if workers else None

    def holding(self, worker: int, lane: int) -> tuple[Worker, Holding] | None:
        """A lane that a worker has, by any numbers."""
        found = self.worker(worker)
        if found is None or not found.holdings:
            return None
        holdings = list(found.holdings.values())
        return found, holdings[lane % len(holdings)]

    def owner(self, lane: int) -> Holding | None:
        """Who has a lane now."""
        for worker in self.workers.values():
            holding = worker.holdings.get(lane)
            if holding is not None and holding.current:
                return holding
        return None

    def holder(self, lane: int) -> Holding | None:
        """Who believes to have a lane, first of all who has it now."""
        held = [worker.holdings[lane] for worker in self.workers.values() if lane in worker.holdings]
        return self.owner(lane) or next(iter(held), None)

    def note(self, *what: object) -> None:
        self.trace.append(what)

    def check(self) -> None:
        """What holds of memory after every step."""
        for worker in self.workers.values():
            worker.check_breaker()
            for holding in worker.holdings.values():
                holding.check()
                if holding.routed:
                    check_unrouted(holding)
