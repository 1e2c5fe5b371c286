"""A process that owns lanes."""

from random import Random

from dispatch.simulation.handing import next_of
from dispatch.simulation.holding import Holding
from dispatch.simulation.message import Message
from dispatch.simulation.setup import Definition
from dispatch.simulation.store import Store
from dispatch.simulation.violation import ensure
from milepost.dispatch.breaker import Breaker
from milepost.dispatch.delivery import Delivery, State


class Worker:
    """Owns lanes, hands their messages out, and dies at any time."""

    def __init__(self, store: Store, number: int, definition: Definition) -> None:
        self.store = store
        self.number = number
        self.definition = definition
        self.holdings: dict[int, Holding] = {}
        self.breaker = Breaker(definition.settings.stall_after, definition.settings.retry.delay)
        self._random = Random(number)
        self._stalls = 0
        self._was_stalled = False

    def may_take(self, lane: int, owner_lives: bool, by_force: bool) -> bool:
        """Whether it may have a lane: not one that a later definition has run."""
        record = self.store.lanes[lane]
        if record.definition > self.definition.number:
            return False
        if lane in self.holdings and self.holdings[lane].current:
            return False
        return by_force or record.owner is None or record.owner == self.number or not owner_lives

    def take(self, lane: int) -> Holding:
        """Takes a lane, and forgets what it may still have had of it."""
        self.drop(lane)
        vanished = self.store.lanes[lane].owner != self.number
        state = self.store.take(lane, self.number, self.definition.number, vanished=vanished)
        holding = Holding(self.store, lane, self.definition, state, self.breaker, self._random.random)
        self.holdings[lane] = holding
        return holding

    def drop(self, lane: int) -> None:
        """Throws a lane away."""
        holding = self.holdings.pop(lane, None)
        if holding is not None:
            holding.lane.discard()

    def next(self, holding: Holding, limit: int) -> list[Delivery[Message]]:
        """Hands out, unless something runs alone in this process."""
        given = next_of(holding, min(limit, self._most(holding)), self.stall())
        self._check_probes()
        return given

    def _most(self, holding: Holding) -> int:
        """How much a lane may hand out beside the others: where suspects wait, only what was promised before."""
        others = [other for other in self.holdings.values() if other is not holding]
        if holding.lane.suspects:
            return 0 if any(other.open for other in others) else 1
        if not any(other.lane.suspects for other in others):
            return 2**63
        alone = any(claim.alone for other in others for claim in other.open.values())
        return 0 if alone else holding.lane.in_flight - len(holding.open)

    def stall(self) -> int | None:
        """The number of the stall that lasts, if one does."""
        stalled = self.breaker.stalled is not None
        if stalled and not self._was_stalled:
            self._stalls += 1
        self._was_stalled = stalled
        return self._stalls if stalled else None

    def check_breaker(self) -> None:
        """Attempts that failed one after the other stall the subscription, though they are not written yet."""
        if len(self.store.lanes) > 1:
            return
        for holding in self.holdings.values():
            failed = holding.failed_since()
            ensure(self.breaker.unwritten == failed, f"{self.breaker.unwritten} failed, not {failed}")
            stalled = self.breaker.stalled is not None or failed < holding.settings.stall_after
            ensure(stalled, f"the last {failed} attempts failed, and it goes on")

    def _check_probes(self) -> None:
        stall = self.stall()
        if stall is not None:
            probes = [
                claim.position
                for holding in self.holdings.values()
                for claim in holding.open.values()
                if claim.probe == stall
            ]
            ensure(len(probes) <= 1, f"{probes} are tried at a time, while stalled")

    def swap(self, holding: Holding) -> bool:
        """Makes an exchange and learns its answer, or goes on with the one under way; False: it is refused."""
        if holding.under_way is None:
            holding.make()
        if not holding.commit():
            self.drop(holding.number)
            return False
        holding.learn()
        return True

    def release(self, holding: Holding) -> None:
        """Leaves a lane in good order."""
        if holding.committing() and not self.swap(holding):
            return
        holding.close()
        while holding.under_way is not None or holding.make() is not None:
            if not self.swap(holding):
                return
        check_released(holding)
        self.store.release(holding.number, holding.epoch)
        self.drop(holding.number)


def check_released(holding: Holding) -> None:
    """Nothing says that it runs, save what waits to be tried alone."""
    for row in holding.record.rows.values() if holding.current else ():
        waits = row.position in holding.store.suspects and row.position not in holding.store.alone
        ensure(waits or row.state is not State.RUNNING, f"{row} was left by an owner that has ended")
