"""A process that owns lanes."""

from random import Random

from dispatch.simulation.handing import next_of
from dispatch.simulation.holding import Holding, Page
from dispatch.simulation.message import Message
from dispatch.simulation.server import Server
from dispatch.simulation.setup import Definition
from dispatch.simulation.store import Store
from dispatch.simulation.violation import ensure
from milepost.dispatch.breaker import Breaker
from milepost.dispatch.delivery import LaneDelivery, State


class Worker:
    """Owns lanes, hands their messages out, and dies at any time."""

    def __init__(self, server: Server, number: int, definition: Definition) -> None:
        self.server = server
        self.reads = server.store
        """The life in which it reads the log, as far as it knows."""
        self.pages: dict[int, Page] = {}
        """Pages that it has read for lanes and not filled in."""
        self.number = number
        self.definition = definition
        self.holdings: dict[int, Holding] = {}
        self.breaker = Breaker(definition.settings.stall_after, definition.settings.retry.delay)
        self._random = Random(number)
        self._stalls = 0
        self._was_stalled = False

    @property
    def store(self) -> Store:
        """The store in its present life."""
        return self.server.store

    def may_take(self, lane: int, owner_lives: bool, by_force: bool) -> bool:
        """Whether it may have a lane: not one that a later definition has run."""
        record = self.store.lanes[lane]
        if record.definition > self.definition.number:
            return False
        if lane in self.holdings and self.holdings[lane].current:
            return False
        return by_force or record.owner is None or record.owner == self.number or not owner_lives

    def take(self, lane: int) -> Holding | None:
        """Takes a lane, and forgets what it may still have had of it. None if the log has another life by now."""
        self.drop(lane)
        vanished = self.store.lanes[lane].owner != self.number
        log_life = self.reads.life
        state = self.server.take(lane, self.number, self.definition.number, log_life=log_life, vanished=vanished)
        if state is None:
            return None
        holding = Holding(self.server, lane, self.definition, state, log_life, self.breaker, self._random.random)
        self.holdings[lane] = holding
        return holding

    def drop(self, lane: int) -> None:
        """Throws a lane away."""
        holding = self.holdings.pop(lane, None)
        if holding is not None:
            holding.lane.discard()

    # Reading the log

    def notice(self) -> None:
        """Look which life the log has now."""
        self.reads = self.server.store

    def let_go(self) -> None:
        """Drop the lanes that it took in another life than the one in which it reads the log now."""
        for holding in list(self.holdings.values()):
            if holding.log_life != self.reads.life:
                self.drop(holding.number)

    def read(self, holding: Holding, size: int, before: int, beyond: int) -> Page | None:
        """Read a page for a lane; None if the lane has to go."""
        self.let_go()
        if not self.has(holding):
            return None
        return self._page(holding.number, max(0, holding.lane.reach - before), size, beyond)

    def fill(self, lane: int, page: Page) -> bool:
        """Fill a page into a lane, if both are of one life; return whether that moved the reach."""
        self.let_go()
        holding = self.holdings.get(lane)
        if holding is None or holding.log_life != page.life:
            return False
        return holding.lane.reach >= page.low and holding.fill(page)

    def has(self, holding: Holding) -> bool:
        """Whether a lane is still in its hands."""
        return self.holdings.get(holding.number) is holding

    def _page(self, lane: int, start: int, size: int, beyond: int) -> Page:
        """What comes after a position, in the log as it is, or was, in the life in which it is read."""
        log, life = self.reads.log, self.reads.life
        after = [message for message in self.reads.lanes[lane].messages if message.position > start]
        found = [message for message in after if message.number not in self.definition.rejected]
        page = found[:size]
        if len(found) > size:
            last = page[-1].position if page else start
            return Page(life, start, min(last + beyond, found[size].position - 1), page)
        log.horizon += beyond
        return Page(life, start, log.horizon, page)

    def next(self, holding: Holding, limit: int) -> list[LaneDelivery[Message]]:
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
        if not holding.learn():
            self.drop(holding.number)
            return False
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
        released = self.server.release(holding.number, holding.life, holding.epoch)
        ensure(not (released and holding.store.is_over), "an owner of another life released a lane")
        self.drop(holding.number)


def check_released(holding: Holding) -> None:
    """Nothing says that it runs, save what waits to be tried alone."""
    for row in holding.record.rows.values() if holding.current else ():
        waits = row.position in holding.store.suspects and row.position not in holding.store.alone
        ensure(waits or row.state is not State.RUNNING, f"{row} was left by an owner that has ended")
