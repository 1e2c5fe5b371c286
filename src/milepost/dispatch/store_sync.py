"""The exchanges of a lane with the store: make the writes and questions, apply the answer."""

from collections.abc import Collection, Iterator, Sequence
from typing import Generic

import msgspec

from milepost.dispatch.breaker import Breaker
from milepost.dispatch.claims import DeliveryClaims
from milepost.dispatch.delivery import (
    STATUS_ASIDE,
    STATUS_BLOCKED,
    STATUS_GONE,
    STATUS_GUARDED,
    STATUS_OPEN,
    DeliveryRow,
    LaneDelivery,
    LaneEntry,
    M,
    State,
)
from milepost.dispatch.exchange import (
    AttemptTally,
    Cursor,
    Exchange,
    ExchangeAnswer,
    ExchangeQuery,
    ExchangeWrite,
    LaneState,
    LoadedRow,
    RowChange,
    RowCounts,
)
from milepost.dispatch.lane_memory import LaneMemory, was_given_back
from milepost.dispatch.retry import suspected_row
from milepost.dispatch.routing.router import Router, UnroutedScan
from milepost.dispatch.settings import LimitReached

_MAX_ROWS_PER_KEY = 100
"""The most rows of one key that are loaded at a time."""
_NEVER = float("inf")


class _PlannedChange(msgspec.Struct, Generic[M], frozen=True):
    """A change of a row, and the entry that it is about."""

    move: RowChange
    entry: LaneEntry[M] | None = None
    stays: bool = False
    """True if the entry stays in memory."""


class _PendingExchange(msgspec.Struct, Generic[M]):
    """An exchange, from its making to its outcome."""

    exchange: Exchange[M]
    steps: list[_PlannedChange[M]]
    dropped: list[LaneEntry[M]]
    """Entries that leave memory because an earlier row holds their key."""
    scan: UnroutedScan[M] | None
    settled: int
    tally: AttemptTally
    """The attempts of this lane that it reports."""


class StoreSync(Generic[M]):
    """Make exchanges, one at a time, and apply their answers to the lane's memory.

    The writes of an exchange count when its answer comes. So `abandon` forgets one that was rolled back, and after
    one whose outcome is unknown the lane has to be made anew.
    """

    def __init__(
        self,
        lane_memory: LaneMemory[M],
        claims: DeliveryClaims[M],
        router: Router[M] | None,
        breaker: Breaker,
        state: LaneState[M],
    ) -> None:
        self._lane_memory = lane_memory
        self._claims = claims
        self._router = router
        self._breaker = breaker
        self._written = state.cursor
        self._heads_after = "" if state.rows and lane_memory.settings.ordered else None
        self.next_due = state.now if state.rows else None
        """Time at which the earliest row is due that is not in memory; None: there is none."""
        self._counts = state.counts
        self._under_way: _PendingExchange[M] | None = None
        self._due_after_exchange = _NEVER
        self._succeeded = 0
        self._failed = 0
        self.settled = 0
        """Number of messages settled since the last write."""

    # What has been tried

    def count_successes(self, count: int) -> None:
        """Count attempts that succeeded."""
        self._succeeded += count
        if self._failed:
            self._failed = 0
            if self._under_way is not None:
                self._under_way.tally = AttemptTally(self._under_way.tally.succeeded, 0)
        if self._breaker.streak or self._breaker.stalled:
            self._breaker.succeeded()

    def count_failure(self, now: float) -> None:
        """Count an attempt that failed."""
        self._failed += 1
        self._breaker.failed(now)

    def forget_attempts(self) -> None:
        """Drop the counted attempts that are not stored."""
        self._breaker.forget(AttemptTally(self._succeeded, self._failed))
        self._succeeded = self._failed = 0

    # What is to be written and asked

    @property
    def is_under_way(self) -> bool:
        """True if an exchange is under way."""
        return self._under_way is not None

    def writing(self) -> Collection[int]:
        """Return the positions that the exchange under way changes."""
        return {step.move.position for step in self._under_way.steps} if self._under_way else ()

    def is_urgent(self, now: float) -> bool:
        """Return True if something can go on only after an exchange."""
        memory = self._lane_memory
        if memory.guards or any(not memory.is_busy(key) for key in memory.keys.unknown):
            return True
        if self._scans_unrouted() or (self._searches_rows(now) and self._rows_room() > 0):
            return True
        return memory.room() <= 0 and self._makes_room()

    def is_dirty(self) -> bool:
        """Return True if there is something to write, urgent or not."""
        memory = self._lane_memory
        changed = self.settled or memory.aside or memory.seen or memory.finished
        if changed or memory.window.low != self._written.position or self._has_followers():
            return True
        # A slow message holds up the cursor, and not what is known to be passed behind it.
        return memory.window.passes_last and memory.window.reach > self._written.end

    def _makes_room(self) -> bool:
        """Return True if writing would take something out of a full window."""
        if self._lane_memory.finished:
            return True
        fates = [entry.fate.state for entry in self._lane_memory.aside.values() if entry.fate]
        if any(state is not State.UNROUTED for state in fates) or (fates and self.unrouted_left() > 0):
            return True
        if self._router is not None and self.unrouted_left() > len(fates) and self._router.is_crowded():
            return True
        return self._has_followers()

    def _has_followers(self) -> bool:
        """Return True if a message waits behind stored rows of its key and may get a row of its own."""
        return (
            self._counts.waiting < self._lane_memory.settings.max_waiting
            and self._key_with_followers() is not None
        )

    def wake_at(self) -> float | None:
        """Return the time at which rows are due that there is room for; None: not now."""
        return self.next_due if self._under_way is None and self._rows_room() > 0 else None

    def cursor_under_way(self) -> Cursor | None:
        """Return the cursor that the store may have by now, though no answer has said so yet."""
        write = self._under_way.exchange.write if self._under_way else None
        return write.cursor if write else None

    def search_heads(self) -> None:
        """Look for heads of keys again: keys that were held may go on."""
        if self._lane_memory.has_rows and self._lane_memory.settings.ordered:
            self._heads_after = ""

    def reordered(self) -> None:
        """Look for rows again: they have other keys, and any of them may be the lowest of its key."""
        self._heads_after = None
        self.search_heads()
        self.note_row_due(float("-inf"))

    def note_row_due(self, due: float) -> None:
        """Note that a row is due at a time. The answer of an exchange under way, maybe older, keeps it."""
        if self._under_way is not None:
            self._due_after_exchange = min(due, self._due_after_exchange)
        else:
            self.next_due = due if self.next_due is None else min(due, self.next_due)

    def unrouted_left(self) -> int:
        """Return how many more unrouted rows there may be."""
        return max(0, self._lane_memory.settings.max_unrouted - self._counts.unrouted)

    @property
    def stopped(self) -> LimitReached | None:
        """The limit that keeps a message here from getting its row, and so the cursor from passing it."""
        settings, counts = self._lane_memory.settings, self._counts
        # The counts first: this is asked often, and looking for a message takes longer.
        if counts.waiting >= settings.max_waiting and (key := self._key_with_followers()) is not None:
            return LimitReached(limit="max_waiting", most=settings.max_waiting, rows=counts.waiting, key=key)
        if self._router is not None and self.unrouted_left() == 0 and self._has_unrouted():
            filters = self._router.filters()
            return LimitReached(
                limit="max_unrouted", most=settings.max_unrouted, rows=counts.unrouted, filters=filters
            )
        return None

    def _key_with_followers(self) -> str | None:
        return next((key for key in self._held_keys() for _ in self._waiting_here(key)), None)

    def _has_unrouted(self) -> bool:
        fates = (entry.fate for entry in self._lane_memory.aside.values())
        return any(fate is not None and fate.state is State.UNROUTED for fate in fates)

    @property
    def counts(self) -> RowCounts:
        """The numbers of rows of the subscription, as the last answer said."""
        return self._counts

    def make(self, now: float, commits: Sequence[LaneDelivery[M]], closing: bool) -> Exchange[M] | None:
        """Begin the next exchange; None if there is nothing to write and nothing to ask."""
        dropped: list[LaneEntry[M]] = []
        steps = list(self._changes(now, closing, dropped))
        scan = self._router.scan() if self._router and not closing else None
        write = self._write(steps, commits)
        ask = None if closing else self._ask(now, scan)
        if write is None and ask is None:
            return None
        if write is not None and any(move.replaces is None for move in write.moves):
            # The rows may be there from now on, though no answer has said so yet.
            self._lane_memory.has_rows = True
        exchange = Exchange(now, write, ask, tuple(commits))
        tally = AttemptTally(self._succeeded, self._failed) if write else AttemptTally()
        self._under_way = _PendingExchange(exchange, steps, dropped, scan, self.settled if write else 0, tally)
        return exchange

    def _write(
        self, steps: Sequence[_PlannedChange[M]], commits: Sequence[LaneDelivery[M]]
    ) -> ExchangeWrite | None:
        moves = [step.move for step in steps]
        rows = [delivery.entry.row for delivery in commits]
        moves.extend(
            RowChange.of(row.position, row, None, required=True)
            for row in rows
            if row is not None and row.state is not State.SKIPPED
        )
        passing = {move.position for move in moves} | {delivery.entry.position for delivery in commits}
        cursor = self._lane_memory.window.cursor(passing)
        tally = AttemptTally(self._succeeded + len(commits), 0 if commits else self._failed)
        recovers = tally.succeeded and self._breaker.stalled
        if not moves and not commits and cursor == self._written and not recovers:
            return None
        return ExchangeWrite(cursor, moves, tally, self._lane_memory.settings.keep_done)

    def _changes(self, now: float, closing: bool, dropped: list[LaneEntry[M]]) -> Iterator[_PlannedChange[M]]:
        memory = self._lane_memory
        allowance = _Quota(memory.settings.max_waiting - self._counts.waiting)
        held: dict[str, None] = {}
        written: set[int] = set()
        for entry in memory.finished.values():
            yield _PlannedChange(RowChange.of(entry.position, entry.row, None), entry)
        for row in memory.seen.values():
            yield _PlannedChange(RowChange.of(row.position, row, _row_that_does_not_run(row, now)))
        for entry in self._fates():
            yield _PlannedChange(RowChange.of(entry.position, entry.row, entry.fate), entry)
            written.add(entry.position)
            if entry.key is not None and entry.fate and memory.holds_key(entry.fate):
                held[entry.key] = None
        if closing:
            return
        for other in [other for key in held for other in memory.keys.chain(key) if _is_loaded(other)]:
            if other.row is not None and was_given_back(other):
                yield _PlannedChange(
                    RowChange.of(other.position, other.row, _row_that_does_not_run(other.row, now)), other
                )
            else:
                dropped.append(other)
        for key in {**held, **dict.fromkeys(self._held_keys())}:
            yield from self._followers(key, written, allowance, now)
        for delivery in memory.guards.values():
            entry = delivery.entry
            if entry.guard and not _is_skipped(entry):
                yield _PlannedChange(
                    RowChange.of(entry.position, entry.row, _running_row(entry, now)), entry, stays=True
                )

    def _fates(self) -> Iterator[LaneEntry[M]]:
        """Yield the entries that were set aside, unrouted ones only as far as there may be more rows."""
        allowance = _Quota(self._lane_memory.settings.max_unrouted - self._counts.unrouted)
        for entry in self._lane_memory.aside.values():
            if not (entry.fate and entry.fate.state is State.UNROUTED) or allowance.take():
                yield entry

    def _followers(
        self, key: str, written: Collection[int], allowance: "_Quota", now: float
    ) -> Iterator[_PlannedChange[M]]:
        for entry in self._waiting_here(key, written):
            if not allowance.take():
                return
            row = entry.as_row(State.WAITING, now)
            yield _PlannedChange(RowChange.of(entry.position, None, row), entry)

    def _held_keys(self) -> Iterator[str]:
        """Return the keys known to have stored rows before their entries here."""
        keys = self._lane_memory.keys
        return (key for key in keys.stored if key not in keys.unknown and keys.heads[key].status != STATUS_ASIDE)

    def _waiting_here(self, key: str, written: Collection[int] = ()) -> Iterator[LaneEntry[M]]:
        """Yield new messages that wait only behind messages with rows of their key, stored or `written`."""
        if self._lane_memory.keys.strays.hold(key):
            return
        for entry in self._lane_memory.keys.chain(key):
            if entry.row is not None or entry.status == STATUS_GONE or entry.position in written:
                continue
            if entry.status != STATUS_BLOCKED:
                return
            yield entry

    def _ask(self, now: float, scan: UnroutedScan[M] | None) -> ExchangeQuery | None:
        keys = tuple(key for key in self._lane_memory.keys.unknown if not self._lane_memory.is_busy(key))
        room = self._rows_room()
        looks = room > 0 and self._searches_rows(now)
        if not keys and not looks and scan is None:
            return None
        return ExchangeQuery(
            now=now,
            limit=max(0, room),
            bytes=max(0, self._lane_memory.room_bytes()),
            per_key=max(1, min(_MAX_ROWS_PER_KEY, room // max(1, len(keys)))),
            holding={
                position: entry.row.revision for position, entry in self._lane_memory.rows.items() if entry.row
            },
            keys=keys,
            due=looks and self._is_due(now),
            heads_after=self._heads_after if looks else None,
            unrouted_after=scan.after if scan else None,
            # What a scan brings back goes out at once, so there is always room for some.
            unrouted_limit=min(max(room, self._rows_kept()), scan.limit) if scan else 0,
            routes=scan.routes if scan else None,
        )

    def _searches_rows(self, now: float) -> bool:
        """Return True if rows are to be looked for."""
        return self._heads_after is not None or self._is_due(now)

    def _scans_unrouted(self) -> bool:
        return self._router is not None and self._router.scan() is not None

    def _is_due(self, now: float) -> bool:
        return self.next_due is not None and self.next_due <= now

    def _rows_room(self) -> int:
        """Return the number of rows that may be loaded."""
        return max(self._lane_memory.room(), self._rows_kept() - self._lane_memory.rows_here())

    def _rows_kept(self) -> int:
        """Return the number of rows that may be in memory though the window is full otherwise."""
        return self._lane_memory.settings.window // 8 + 1

    # What the answer means

    def abandon(self) -> None:
        """Forget the exchange under way, which was rolled back."""
        self._under_way = None
        self._note_due_after_exchange()

    def apply(self, answer: ExchangeAnswer[M]) -> Exchange[M]:
        """End the exchange under way with its answer, and return it. RuntimeError without one."""
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            raise RuntimeError("there is no exchange under way")
        exchange = under_way.exchange
        self._counts = answer.counts
        self._lane_memory.has_rows = answer.rows or bool(self._lane_memory.keys.strays)
        self._breaker.learn(answer.streak, answer.stalled, answer.counts.retrying, under_way.tally)
        if exchange.write is not None:
            self._wrote(exchange.write, under_way, answer.moved)
        if exchange.ask is not None:
            self._learn(exchange.ask, answer)
        if under_way.scan is not None and self._router is not None:
            self._router.scanned(under_way.scan, answer.unrouted, answer.unrouted_end)
        self._note_due_after_exchange()
        return exchange

    def _note_due_after_exchange(self) -> None:
        later, self._due_after_exchange = self._due_after_exchange, _NEVER
        if later < _NEVER:
            self.note_row_due(later)

    def _wrote(self, write: ExchangeWrite, under_way: _PendingExchange[M], moves: Sequence[bool]) -> None:
        self._written = write.cursor
        self.settled -= under_way.settled
        self._succeeded -= under_way.tally.succeeded
        self._failed -= under_way.tally.failed
        left = list(under_way.dropped)
        for step, moved in zip(under_way.steps, moves, strict=False):
            if not moved:
                self.note_row_due(float("-inf"))
            if step.move.row is not None and step.move.row.due is not None:
                self.note_row_due(step.move.row.due)
            if step.entry is None:
                self._lane_memory.seen.pop(step.move.position, None)
            elif step.move.row is None:
                self._lane_memory.forget(step.entry)
            elif not step.stays:
                left.append(step.entry)
            elif moved:
                self._lane_memory.start(step.entry, step.move.row)
                self._claims.may_start(step.entry)
            else:
                self._claims.revoke(step.entry)
                self._lane_memory.lose(step.entry)
        self._lane_memory.leave(left)

    def _learn(self, ask: ExchangeQuery, answer: ExchangeAnswer[M]) -> None:
        memory = self._lane_memory
        for key in ask.keys:
            memory.keys.unknown.pop(key, None)
            if key not in answer.held:
                memory.open_key(key)
        for loaded in answer.due:
            self._learn_due_row(loaded, answer)
        for key, held in answer.held.items():
            memory.take_back_unrouted(key)
            if memory.is_busy(key):
                memory.keys.unknown[key] = None
            else:
                memory.load_key(key, held, ask.now)
        for loaded in answer.due:
            self._defer_due_row(loaded, answer)
        if ask.due:
            self.next_due = answer.next_due
        elif answer.next_due is not None:
            self.note_row_due(answer.next_due)
        if ask.heads_after is not None:
            self._heads_after = answer.heads_end

    def _learn_due_row(self, loaded: LoadedRow[M], answer: ExchangeAnswer[M]) -> None:
        """Take over a row that is due: it failed a while ago, or a person decided."""
        memory, row = self._lane_memory, loaded.row
        entry = memory.rows.get(row.position)
        if entry is not None and entry.fate is not None and row.since > entry.fate.since:
            # A person decided after the attempt: its outcome must not overwrite the decision.
            memory.forget(entry)
            entry = None
        if entry is not None:
            memory.update(entry, row)
        elif row.state is State.SKIPPED:
            memory.seen[row.position] = row
        elif row.key is None:
            memory.make_ready(memory.load(loaded))
        if row.key is not None and row.key not in answer.held and not memory.is_busy(row.key):
            memory.open_key(row.key)

    def _defer_due_row(self, loaded: LoadedRow[M], answer: ExchangeAnswer[M]) -> None:
        """Let a due row that may not run wait for its turn in its key, or it would be found due for ever."""
        memory, row = self._lane_memory, loaded.row
        if row.key is None or row.state is State.SKIPPED or row.position in memory.rows:
            return
        held = answer.held.get(row.key)
        is_first = held is not None and row.position <= held.rows[0].row.position
        if memory.is_busy(row.key) or not is_first:
            memory.seen[row.position] = row


class _Quota:
    """A number of rows that may still be written."""

    def __init__(self, left: int) -> None:
        self._left = left

    def take(self) -> bool:
        self._left -= 1
        return self._left >= 0


def _is_skipped(entry: LaneEntry[M]) -> bool:
    return entry.row is not None and entry.row.state is State.SKIPPED


def _is_loaded(entry: LaneEntry[M]) -> bool:
    return entry.row is not None and entry.status not in (STATUS_ASIDE, STATUS_OPEN, STATUS_GUARDED)


def _row_that_does_not_run(row: DeliveryRow, now: float) -> DeliveryRow:
    """Return the row of a message that was due or running and must not run."""
    if row.state is State.SKIPPED:
        return row.changed(due=None)
    if row.key is None:
        return row.changed(state=State.RETRYING, due=now, since=now)
    return row.changed(state=State.WAITING, due=None, since=now)


def _running_row(entry: LaneEntry[M], now: float) -> DeliveryRow:
    """Return the row to write before an entry starts; it also says that a suspect runs alone."""
    row = entry.row or entry.as_row(State.RUNNING, now)
    if entry.suspect:
        row = suspected_row(row)
    return row.changed(
        state=State.RUNNING,
        since=now,
        due=None,
        consumer=entry.delivery.consumer if entry.delivery else None,
    )
