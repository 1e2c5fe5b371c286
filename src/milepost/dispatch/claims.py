"""The deliveries that are in force: handed out or promised, not settled, not timed out."""

from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Generic

from milepost.dispatch.breaker import Breaker
from milepost.dispatch.delivery import STATUS_GUARDED, STATUS_OPEN, LaneDelivery, LaneEntry, M, State
from milepost.dispatch.lane_memory import LaneMemory
from milepost.dispatch.routing.route import RouteMember
from milepost.dispatch.routing.routes import Routes


class DeliveryClaims(Generic[M]):
    """Make deliveries of entries, and end them.

    A delivery is its own claim: it is in force as long as its entry refers to it. An entry that comes back and
    goes out again gets another delivery, so that the first one can no longer be settled.
    """

    def __init__(self, lane_memory: LaneMemory[M], routes: Routes[M] | None, breaker: Breaker) -> None:
        self._lane_memory = lane_memory
        self._routes = routes
        self._breaker = breaker
        self._deadlines: list[tuple[float, int, LaneDelivery[M]]] = []
        self._timed = 0
        self._started: deque[LaneDelivery[M]] = deque()
        self._committing: frozenset[LaneDelivery[M]] = frozenset()
        self._overdue: list[LaneDelivery[M]] = []
        self.in_flight = 0
        """Number of deliveries in force, handed out or promised."""
        self.alone: LaneDelivery[M] | None = None
        """The delivery that nothing else may run beside."""

    def promise(self, entry: LaneEntry[M], member: RouteMember[M] | None) -> LaneDelivery[M]:
        """Make a delivery for a consumer, or without a member for the lane's own process."""
        delivery = LaneDelivery(entry.message, entry.attempts + 1, entry, member)
        entry.delivery = delivery
        self.in_flight += 1
        if entry.position > self._lane_memory.touched:
            self._lane_memory.touched = entry.position
        if member is not None and self._routes is not None:
            self._routes.opened(delivery)
            self._lane_memory.lend(entry)
        if entry.suspect:
            self.alone = delivery
        if self._breaker.stalled:
            self._breaker.probe = delivery
        if entry.guard:
            entry.status = STATUS_GUARDED
            self._lane_memory.guards[entry.position] = delivery
        return delivery

    def open(self, delivery: LaneDelivery[M], now: float) -> None:
        """Note that a delivery is handed out; its time-out begins."""
        delivery.entry.status = STATUS_OPEN
        timeout = self._lane_memory.settings.timeout
        if timeout is not None:
            self.expire_at(delivery, now + timeout)

    def hand_out(self, entries: Iterable[LaneEntry[M]], now: float) -> list[LaneDelivery[M]]:
        """Make deliveries of OPEN entries for the lane's own process; guarded ones are only promised."""
        given: list[LaneDelivery[M]] = []
        times_out = self._lane_memory.settings.timeout is not None
        for entry in entries:
            if entry.guard:
                self.promise(entry, None)
                continue
            delivery = LaneDelivery(entry.message, 1 if entry.row is None else entry.attempts + 1, entry)
            entry.delivery = delivery
            if times_out:
                self.open(delivery, now)
            given.append(delivery)
        self.in_flight += len(given)
        return given

    def end_all(self, deliveries: Iterable[LaneDelivery[M]], refused: list[LaneDelivery[M]]) -> list[LaneEntry[M]]:
        """End deliveries and return their entries. Those no longer in force are added to `refused`."""
        entries: list[LaneEntry[M]] = []
        is_usual = self._routes is None and self.alone is None and self._breaker.probe is None
        is_usual = is_usual and not self._committing
        ended = 0
        for delivery in deliveries:
            entry = delivery.entry
            if is_usual and entry.delivery is delivery and entry.status == STATUS_OPEN:
                entry.delivery = None
                ended += 1
                entries.append(entry)
            elif self.end(delivery):
                entries.append(entry)
            else:
                refused.append(delivery)
        self.in_flight -= ended
        return entries

    @property
    def promised(self) -> int:
        """Number of deliveries that are in force and not handed out."""
        return len(self.promises())

    def promises(self) -> list[LaneDelivery[M]]:
        """Return the deliveries that are in force and not handed out."""
        promised = [*self._lane_memory.guards.values(), *self._started]
        return [delivery for delivery in promised if delivery.is_in_force]

    def may_start(self, entry: LaneEntry[M]) -> None:
        """Let a guarded entry go out with the next `start`: its row says that it runs."""
        delivery = self._lane_memory.guards.pop(entry.position, None)
        if delivery is not None:
            self._started.append(delivery)

    def revoke(self, entry: LaneEntry[M]) -> None:
        """End the delivery of an entry, if there is one: it is not handed out after all."""
        if entry.delivery is not None:
            self.end(entry.delivery)

    def skipped(self) -> list[LaneEntry[M]]:
        """End the deliveries of entries that a person skipped before they were handed out; return the entries."""
        entries = [delivery.entry for delivery in self.promises()]
        found = [entry for entry in entries if entry.row is not None and entry.row.state is State.SKIPPED]
        for entry in found:
            self.revoke(entry)
        return list(dict.fromkeys(found))

    def start(self, now: float, limit: int) -> list[LaneDelivery[M]]:
        """Hand out promised deliveries that may start, at most `limit`."""
        given: list[LaneDelivery[M]] = []
        while self._started and len(given) < limit:
            delivery = self._started.popleft()
            if delivery.entry.delivery is delivery:
                self.open(delivery, now)
                given.append(delivery)
        return given

    def end(self, delivery: LaneDelivery[M]) -> bool:
        """End a delivery; False if it is not in force, or if a transaction under way settles it."""
        entry = delivery.entry
        if entry.delivery is not delivery or (self._committing and delivery in self._committing):
            return False
        entry.delivery = None
        self.in_flight -= 1
        if entry.status == STATUS_GUARDED:
            self._lane_memory.guards.pop(entry.position, None)
        if delivery.member is not None and self._routes is not None:
            self._routes.closed(delivery)
            self._lane_memory.returned(entry)
        if self.alone is delivery:
            self.alone = None
        self._breaker.given_up(delivery)
        return True

    # Time-outs

    def expire_at(self, delivery: LaneDelivery[M], deadline: float) -> None:
        """Set the time at which a delivery times out, unless it is settled before."""
        self._timed += 1
        delivery.deadline = deadline
        heappush(self._deadlines, (deadline, self._timed, delivery))
        if len(self._deadlines) > 2 * self.in_flight + 100:
            # Nearly all of it is settled.
            self._deadlines = [timed for timed in self._deadlines if _is_in_force(*timed)]
            heapify(self._deadlines)

    def expired(self, now: float) -> list[LaneDelivery[M]]:
        """Return deliveries that should have been settled by now, each once."""
        found: list[LaneDelivery[M]] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            timed = heappop(self._deadlines)
            if _is_in_force(*timed):
                (self._overdue if timed[2] in self._committing else found).append(timed[2])
        # One that was extended to the time that it had anyway is in there twice.
        return list(dict.fromkeys(found))

    # Transactions under way

    def commit(self, deliveries: Iterable[LaneDelivery[M]]) -> None:
        """Reserve deliveries for a transaction: until its outcome is known nothing else ends them."""
        self._committing = frozenset(deliveries)

    def release(self) -> None:
        """End the reservation: the outcome of the transaction is known."""
        self._committing = frozenset()
        for delivery in self._overdue:
            if delivery.deadline is not None and delivery.entry.delivery is delivery:
                self.expire_at(delivery, delivery.deadline)
        self._overdue.clear()

    def next_deadline(self) -> float | None:
        """Return the earliest deadline, maybe of a delivery that has ended; None without any."""
        return self._deadlines[0][0] if self._deadlines else None


def _is_in_force(deadline: float, _: int, delivery: LaneDelivery[M]) -> bool:
    """Return True if a delivery is in force and still has this deadline."""
    return delivery.deadline == deadline and delivery.entry.delivery is delivery
