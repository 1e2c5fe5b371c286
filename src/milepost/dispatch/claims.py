"""Which deliveries are in force, and until when."""

from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Generic

from milepost.dispatch.board import Board
from milepost.dispatch.breaker import Breaker
from milepost.dispatch.delivery import GUARDED, OPEN, Delivery, Entry, M, State
from milepost.dispatch.member import Member
from milepost.dispatch.routes import Routes


class Claims(Generic[M]):
    """Makes a delivery of an entry, and ends it.

    A delivery is its own claim: it is in force as long as its entry refers to it. What comes back and goes out
    again is another delivery, so that whoever had the first can no longer settle it.
    """

    def __init__(self, board: Board[M], routes: Routes[M] | None, breaker: Breaker) -> None:
        self._board = board
        self._routes = routes
        self._breaker = breaker
        self._deadlines: list[tuple[float, int, Delivery[M]]] = []
        self._timed = 0
        self._started: deque[Delivery[M]] = deque()
        self._committing: frozenset[Delivery[M]] = frozenset()
        self._overdue: list[Delivery[M]] = []
        self.in_flight = 0
        """How many are in force, handed out or promised."""
        self.alone: Delivery[M] | None = None
        """The one that nothing else may run beside."""

    def promise(self, entry: Entry[M], member: Member[M] | None) -> Delivery[M]:
        """A delivery for a consumer, or for the lane's own process."""
        delivery = Delivery(entry.message, entry.attempts + 1, entry, member)
        entry.delivery = delivery
        self.in_flight += 1
        if entry.position > self._board.touched:
            self._board.touched = entry.position
        if member is not None and self._routes is not None:
            self._routes.opened(delivery)
            self._board.lend(entry)
        if entry.suspect:
            self.alone = delivery
        if self._breaker.stalled:
            self._breaker.probe = delivery
        if entry.guard:
            entry.place = GUARDED
            self._board.guards[entry.position] = delivery
        return delivery

    def open(self, delivery: Delivery[M], now: float) -> None:
        """It is handed out."""
        delivery.entry.place = OPEN
        timeout = self._board.settings.timeout
        if timeout is not None:
            self.expire_at(delivery, now + timeout)

    def hand_out(self, entries: Iterable[Entry[M]], now: float) -> list[Delivery[M]]:
        """Deliveries of OPEN entries for the lane's own process; a guarded one is promised."""
        given: list[Delivery[M]] = []
        times_out = self._board.settings.timeout is not None
        for entry in entries:
            if entry.guard:
                self.promise(entry, None)
                continue
            delivery = Delivery(entry.message, 1 if entry.row is None else entry.attempts + 1, entry)
            entry.delivery = delivery
            if times_out:
                self.open(delivery, now)
            given.append(delivery)
        self.in_flight += len(given)
        return given

    def end_all(self, deliveries: Iterable[Delivery[M]], refused: list[Delivery[M]]) -> list[Entry[M]]:
        """Ends claims and gives their entries; those that were no longer in force are refused."""
        entries: list[Entry[M]] = []
        is_usual = self._routes is None and self.alone is None and self._breaker.probe is None
        is_usual = is_usual and not self._committing
        ended = 0
        for delivery in deliveries:
            entry = delivery.entry
            if is_usual and entry.delivery is delivery and entry.place == OPEN:
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
        """How many are in force and not handed out."""
        return len(self.promises())

    def promises(self) -> list[Delivery[M]]:
        """Those that are in force and not handed out."""
        promised = [*self._board.guards.values(), *self._started]
        return [delivery for delivery in promised if delivery.is_in_force]

    def may_start(self, entry: Entry[M]) -> None:
        """Its row says that it runs."""
        delivery = self._board.guards.pop(entry.position, None)
        if delivery is not None:
            self._started.append(delivery)

    def revoke(self, entry: Entry[M]) -> None:
        """It is not handed out after all."""
        if entry.delivery is not None:
            self.end(entry.delivery)

    def skipped(self) -> list[Entry[M]]:
        """Ends claims on what a person skipped before it was handed out."""
        entries = [delivery.entry for delivery in self.promises()]
        found = [entry for entry in entries if entry.row is not None and entry.row.state is State.SKIPPED]
        for entry in found:
            self.revoke(entry)
        return found

    def start(self, now: float, limit: int) -> list[Delivery[M]]:
        """Hands out what was promised and may start."""
        given: list[Delivery[M]] = []
        while self._started and len(given) < limit:
            delivery = self._started.popleft()
            if delivery.entry.delivery is delivery:
                self.open(delivery, now)
                given.append(delivery)
        return given

    def end(self, delivery: Delivery[M]) -> bool:
        """Ends a claim; False if it is not in force, or if a transaction under way settles it."""
        entry = delivery.entry
        if entry.delivery is not delivery or (self._committing and delivery in self._committing):
            return False
        entry.delivery = None
        self.in_flight -= 1
        if entry.place == GUARDED:
            self._board.guards.pop(entry.position, None)
        if delivery.member is not None and self._routes is not None:
            self._routes.closed(delivery)
            self._board.returned(entry)
        if self.alone is delivery:
            self.alone = None
        self._breaker.given_up(delivery)
        return True

    # Time-outs

    def expire_at(self, delivery: Delivery[M], deadline: float) -> None:
        """It comes back then, unless it is settled."""
        self._timed += 1
        delivery.deadline = deadline
        heappush(self._deadlines, (deadline, self._timed, delivery))
        if len(self._deadlines) > 2 * self.in_flight + 100:
            # Nearly all of it is settled.
            self._deadlines = [timed for timed in self._deadlines if _is_in_force(*timed)]
            heapify(self._deadlines)

    def expired(self, now: float) -> list[Delivery[M]]:
        """What should have been settled by now."""
        found: list[Delivery[M]] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            timed = heappop(self._deadlines)
            if _is_in_force(*timed):
                (self._overdue if timed[2] in self._committing else found).append(timed[2])
        return found

    # Transactions under way

    def commit(self, deliveries: Iterable[Delivery[M]]) -> None:
        """A transaction settles these, or not: until that is known nobody else does."""
        self._committing = frozenset(deliveries)

    def release(self) -> None:
        """It is known."""
        self._committing = frozenset()
        for delivery in self._overdue:
            if delivery.deadline is not None and delivery.entry.delivery is delivery:
                self.expire_at(delivery, delivery.deadline)
        self._overdue.clear()

    def next_deadline(self) -> float | None:
        return self._deadlines[0][0] if self._deadlines else None


def _is_in_force(deadline: float, _: int, delivery: Delivery[M]) -> bool:
    """Whether a claim still has this deadline."""
    return delivery.deadline == deadline and delivery.entry.delivery is delivery
