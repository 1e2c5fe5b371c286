"""What a committed write must and must not have done."""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from dispatch.simulation.evidence import Evidence, Fate
from dispatch.simulation.violation import Violation, ensure
from milepost.dispatch.delivery import DeliveryRow, State, Suspicion
from milepost.dispatch.exchange import AttemptTally, Cursor, ExchangeWrite, RowChange

if TYPE_CHECKING:
    from dispatch.simulation.store import LaneRecord, Store


class Audit:
    """Compares the rows and the cursor before and after one write with what its owner did."""

    def __init__(self, store: "Store", record: "LaneRecord", write: ExchangeWrite, evidence: Evidence) -> None:
        self._store = store
        self._record = record
        self._write = write
        self._evidence = evidence
        self._rows = dict(record.rows)
        self._cursor = record.cursor

    def check(self, moved: list[bool]) -> None:
        """Checks the write, after which moves did what is known."""
        positions = [move.position for move in self._write.moves]
        ensure(len(set(positions)) == len(positions), f"two moves of one position in {positions}")
        for move, did in zip(self._write.moves, moved, strict=True):
            if did:
                self._check_move(move)
            else:
                self._check_refused(move)
        self._check_cursor()
        self._check_places()
        self._check_committed()
        self._check_limits()
        self._check_tally()

    def _check_refused(self, move: RowChange) -> None:
        """Only a person's change makes a move find another revision."""
        row = self._record.rows.get(move.position)
        by_person = row is not None and self._store.touched.get(move.position) == row.revision
        ensure(by_person, f"{move} found {row}, which nobody has changed since")

    # Cursor

    def _check_cursor(self) -> None:
        cursor = self._write.cursor
        ensure(cursor.position >= self._cursor.position, f"the cursor went back: {self._cursor}, {cursor}")
        end = cursor.position
        for low, high in cursor.ahead:
            ensure(end < low <= high, f"the ranges of {cursor} are not in order")
            end = high
        unpassed = sum(
            cursor.position < message.position <= self._evidence.reach and not covers(cursor, message.position)
            for message in self._record.messages
        )
        most = unpassed + 1 + self._evidence.ranges
        ensure(len(cursor.ahead) <= most, f"{len(cursor.ahead)} ranges are ahead with {unpassed} open messages")

    def _check_places(self) -> None:
        """Each message is after the cursor, has a row, or is settled."""
        record, rows = self._record, self._record.rows
        passed = {message.position for message in record.messages if covers(self._write.cursor, message.position)}
        for position in sorted(record.passed - passed):
            raise Violation(f"{position} was passed and is no longer")
        for position in sorted(rows.keys() - passed):
            raise Violation(f"{position} has a row and is not passed by {self._write.cursor}")
        for position in sorted(passed - record.passed - rows.keys()):
            self._settle(position, "was passed without a row")
        record.passed = passed

    def _settle(self, position: int, what: str) -> None:
        evidence = self._evidence
        known = position in evidence.acked or position in evidence.committing or position in evidence.rejected
        ensure(known, f"{position} {what}, and is not settled")
        self._store.settled.add(position)
        if position not in evidence.acked and position not in evidence.committing:
            self._store.unhandled.add(position)

    def _check_committed(self) -> None:
        """What a handler wrote in this transaction is settled by it."""
        for position in self._evidence.committing:
            row = self._record.rows.get(position)
            skipped = row is not None and row.state is State.SKIPPED
            ensure(
                skipped or position in self._store.settled,
                f"{position} was handled in a transaction that left {row}",
            )

    # Rows

    def _check_move(self, move: RowChange) -> None:
        old, new = self._rows.get(move.position), move.row
        if new is None:
            self._store.clear(move.position)
            self._settle(move.position, "lost its row")
            ensure(
                old is None or old.state is not State.SKIPPED,
                f"{move.position} was skipped by a person, then deleted",
            )
            return
        message = self._store.log.by_position[move.position]
        key = self._store.key_of(message)
        ensure(new.position == move.position and new.key == key, f"{new} is not of {message}")
        ensure(move.position not in self._store.settled, f"{move.position} is settled and got {new}")
        ensure(new.revision == (old.revision if old else 0) + 1, f"{old} became {new}: not the next revision")
        if old is not None and old.state is State.SKIPPED:
            ensure(
                new == replace(old, due=None, revision=old.revision + 1),
                f"a person skipped {old}, and it became {new}",
            )
            return
        self._check_state(old, new)
        self._check_suspicion(new)
        ensure(new.since <= self._store.now, f"{new} came into its state in the future")
        if new.position not in self._store.touched:
            ensure(new.total == new.attempts, f"{old} became {new}: the total is wrong")

    def _check_state(self, old: DeliveryRow | None, new: DeliveryRow) -> None:
        position = new.position
        fate = self._evidence.fates.get(position)
        if new.state in (State.RETRYING, State.PARKED):
            ensure(fate is not None and fate.agrees(new), f"{new} was written for {fate}")
            self._check_person(new.position, fate)
            return
        ensure(new.state is not State.SKIPPED, f"{new} was skipped by no person")
        ensure(position not in self._evidence.acked, f"{new} was written for an acked message")
        ensure(fate is None or fate.ended, f"{new} was written for {fate}")
        counted = old.attempts if old else 0
        ensure(new.attempts == counted, f"{new} counts {new.attempts} attempts, there were {counted}")

    def _check_suspicion(self, new: DeliveryRow) -> None:
        """What has to run alone says so, until it was tried and nothing vanished."""
        store, position = self._store, new.position
        fate = self._evidence.fates.get(position)
        if new.state in (State.RETRYING, State.PARKED) and fate is not None:
            if fate.blamed:
                store.suspects[position] = True
            elif not fate.ended:
                store.clear(position)
        is_pinned = (store.setup.strategy or "").startswith("pinned")
        if new.state is State.UNROUTED and is_pinned and new.suspicion is None:
            # Whom it is pinned to has no room, and others of the route have: it is like any other.
            store.clear(position)
        store.alone.discard(position)
        if position not in store.suspects:
            ensure(new.suspicion is None, f"{new} need not run alone")
            return
        if new.state is State.RUNNING:
            store.alone.add(position)
        mark = Suspicion.CERTAIN if store.suspects[position] else Suspicion.POSSIBLE
        ensure(new.suspicion is mark, f"{new} should say {mark!r}")

    def _check_person(self, position: int, fate: Fate | None) -> None:
        """What a person decided after an attempt is not overwritten by what that came to."""
        newer = fate is not None and self._store.acted_at.get(position, 0) > fate.failed_at
        ensure(not newer, f"a person retried {position} after it failed, and {fate} was written over it")

    def _check_limits(self) -> None:
        """There are no more new rows of a kind than the limit leaves, as far as the owner knew."""
        settings, counts = self._evidence.settings, self._evidence.counts
        new = [move.row.state for move in self._write.moves if move.row and move.replaces is None]
        waiting = max(0, settings.max_waiting - counts.waiting)
        ensure(new.count(State.WAITING) <= waiting, f"{new} in one write, and {waiting} more may wait")
        unrouted = max(0, settings.max_unrouted - counts.unrouted)
        ensure(new.count(State.UNROUTED) <= unrouted, f"{new} in one write, and {unrouted} more may be unrouted")

    def _check_tally(self) -> None:
        """The write says how attempts ended: how many well, and how many badly after the last of those."""
        counted = [outcome for outcome in self._evidence.outcomes if outcome is not None]
        counted += [True] * len(self._evidence.committing)
        failed = 0
        while counted and not counted[-1]:
            counted.pop()
            failed += 1
        expected = AttemptTally(counted.count(True), failed)
        ensure(self._write.tally == expected, f"{self._write.tally} was written instead of {expected}")


def covers(cursor: Cursor, position: int) -> bool:
    """Whether a cursor has passed a position."""
    return position <= cursor.position or any(low <= position <= high for low, high in cursor.ahead)
