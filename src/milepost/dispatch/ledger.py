"""What a lane has to tell the store and to ask of it, and what it makes of the answer."""

from collections.abc import Collection, Iterator, Sequence
from typing import Generic

import msgspec

from milepost.dispatch.attempts import suspected
from milepost.dispatch.board import Board, was_given_back
from milepost.dispatch.breaker import Breaker
from milepost.dispatch.claims import Claims
from milepost.dispatch.delivery import ASIDE, BLOCKED, GONE, GUARDED, OPEN, Delivery, Entry, M, Row, State
from milepost.dispatch.exchange import Answer, Ask, Counts, Cursor, Exchange, LaneState, Loaded, Move, Tally, Write
from milepost.dispatch.limit import LimitReached
from milepost.dispatch.router import Router, Scan

_PER_KEY = 100
"""The most rows of one key that are loaded at a time."""
_NEVER = float("inf")


class _Step(msgspec.Struct, Generic[M], frozen=True):
    """A move, and the entry that it is about."""

    move: Move
    entry: Entry[M] | None = None
    stays: bool = False
    """Whether the entry stays in memory."""


class _UnderWay(msgspec.Struct, Generic[M]):
    """An exchange, from its making to its outcome."""

    exchange: Exchange[M]
    steps: list[_Step[M]]
    dropped: list[Entry[M]]
    """Entries with rows that leave memory because their key is held."""
    scan: Scan[M] | None
    settled: int
    told: Tally
    """What of this lane's own attempts it tells."""


class Ledger(Generic[M]):
    """Keeps one exchange under way at a time.

    What an exchange says holds when its answer comes. So one that was rolled back is forgotten by `abandon`, and
    one whose outcome is unknown is left, with the lane, to a new start.
    """

    def __init__(
        self,
        board: Board[M],
        claims: Claims[M],
        router: Router[M] | None,
        breaker: Breaker,
        state: LaneState[M],
    ) -> None:
        self._board = board
        self._claims = claims
        self._router = router
        self._breaker = breaker
        self._written = state.cursor
        self._heads_after = "" if state.rows and board.settings.ordered else None
        self.next_due = state.now if state.rows else None
        """When the earliest row is due that is not in memory."""
        self._counts = state.counts
        self._under_way: _UnderWay[M] | None = None
        self._look_later = _NEVER
        self._succeeded = 0
        self._failed = 0
        self.settled = 0
        """Messages settled since the last write."""

    # What has been tried

    def count_successes(self, count: int) -> None:
        """Attempts succeeded."""
        self._succeeded += count
        if self._failed:
            self._failed = 0
            if self._under_way is not None:
                self._under_way.told = Tally(self._under_way.told.succeeded, 0)
        if self._breaker.streak or self._breaker.stalled:
            self._breaker.succeeded()

    def count_failure(self, now: float) -> None:
        """An attempt failed."""
        self._failed += 1
        self._breaker.failed(now)

    def forget_attempts(self) -> None:
        """What was tried here and is not stored has never been."""
        self._breaker.forget(Tally(self._succeeded, self._failed))
        self._succeeded = self._failed = 0

    # What is to be written and asked

    @property
    def is_under_way(self) -> bool:
        """Whether an exchange is."""
        return self._under_way is not None

    def writing(self) -> Collection[int]:
        """The positions that the exchange under way is about."""
        return {step.move.position for step in self._under_way.steps} if self._under_way else ()

    def is_urgent(self, now: float) -> bool:
        """Whether something can go on only after an exchange."""
        board = self._board
        if board.guards or any(not board.is_busy(key) for key in board.keys.unknown):
            return True
        if self._scans() or (self._looks(now) and self._rows_room() > 0):
            return True
        return board.room() <= 0 and self._makes_room()

    def is_dirty(self) -> bool:
        """Whether there is something to write, urgent or not."""
        board = self._board
        changed = self.settled or board.aside or board.seen or board.finished
        if changed or board.window.low != self._written.position or self._has_followers():
            return True
        # A slow message holds up the cursor, and not what is known to be passed behind it.
        return board.window.passes_last and board.window.reach > self._written.end

    def _makes_room(self) -> bool:
        """Whether writing would take something out of a full window."""
        if self._board.finished:
            return True
        fates = [entry.fate.state for entry in self._board.aside.values() if entry.fate]
        if any(state is not State.UNROUTED for state in fates) or (fates and self.unrouted_left() > 0):
            return True
        if self._router is not None and self.unrouted_left() > len(fates) and self._router.is_crowded():
            return True
        return self._has_followers()

    def _has_followers(self) -> bool:
        """Whether something waits behind stored rows of its key, and may get a row of its own."""
        return self._counts.waiting < self._board.settings.max_waiting and self._key_with_followers() is not None

    def wake_at(self) -> float | None:
        """When rows are due that there is room for."""
        return self.next_due if self._under_way is None and self._rows_room() > 0 else None

    def cursor_under_way(self) -> Cursor | None:
        """What the store may have by now, though nobody has said so yet."""
        write = self._under_way.exchange.write if self._under_way else None
        return write.cursor if write else None

    def look_for_heads(self) -> None:
        """Keys may go on that were held."""
        if self._board.has_rows and self._board.settings.ordered:
            self._heads_after = ""

    def reordered(self) -> None:
        """Rows have other keys: any of them may be the lowest of its key."""
        self._heads_after = None
        self.look_for_heads()
        self.look_at(float("-inf"))

    def look_at(self, due: float) -> None:
        """Some row is due then. What an exchange under way finds may be older than that."""
        if self._under_way is not None:
            self._look_later = min(due, self._look_later)
        else:
            self.next_due = due if self.next_due is None else min(due, self.next_due)

    def unrouted_left(self) -> int:
        """How many more unrouted rows there may be."""
        return max(0, self._board.settings.max_unrouted - self._counts.unrouted)

    @property
    def stopped(self) -> LimitReached | None:
        """The limit that keeps a message here from getting its row, and so the cursor from passing it."""
        settings, counts = self._board.settings, self._counts
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
        fates = (entry.fate for entry in self._board.aside.values())
        return any(fate is not None and fate.state is State.UNROUTED for fate in fates)

    @property
    def counts(self) -> Counts:
        """How many rows the subscription has, as the last answer said."""
        return self._counts

    def make(self, now: float, commits: Sequence[Delivery[M]], closing: bool) -> Exchange[M] | None:
        """The next exchange; None if there is nothing to write and nothing to ask."""
        dropped: list[Entry[M]] = []
        steps = list(self._changes(now, closing, dropped))
        scan = self._router.scan() if self._router and not closing else None
        write = self._write(steps, commits)
        ask = None if closing else self._ask(now, scan)
        if write is None and ask is None:
            return None
        if write is not None and any(move.replaces is None for move in write.moves):
            # They may be there from now on, though nobody has said so yet.
            self._board.has_rows = True
        exchange = Exchange(now, write, ask, tuple(commits))
        told = Tally(self._succeeded, self._failed) if write else Tally()
        self._under_way = _UnderWay(exchange, steps, dropped, scan, self.settled if write else 0, told)
        return exchange

    def _write(self, steps: Sequence[_Step[M]], commits: Sequence[Delivery[M]]) -> Write | None:
        moves = [step.move for step in steps]
        rows = [delivery.entry.row for delivery in commits]
        moves.extend(
            Move.of(row.position, row, None, required=True)
            for row in rows
            if row is not None and row.state is not State.SKIPPED
        )
        passing = {move.position for move in moves} | {delivery.entry.position for delivery in commits}
        cursor = self._board.window.cursor(passing)
        tally = Tally(self._succeeded + len(commits), 0 if commits else self._failed)
        recovers = tally.succeeded and self._breaker.stalled
        if not moves and not commits and cursor == self._written and not recovers:
            return None
        return Write(cursor, moves, tally, self._board.settings.keep_done)

    def _changes(self, now: float, closing: bool, dropped: list[Entry[M]]) -> Iterator[_Step[M]]:
        board = self._board
        allowance = _Allowance(board.settings.max_waiting - self._counts.waiting)
        held: dict[str, None] = {}
        written: set[int] = set()
        for entry in board.finished.values():
            yield _Step(Move.of(entry.position, entry.row, None), entry)
        for row in board.seen.values():
            yield _Step(Move.of(row.position, row, _dealt_with(row, now)))
        for entry in self._fates():
            yield _Step(Move.of(entry.position, entry.row, entry.fate), entry)
            written.add(entry.position)
            if entry.key is not None and entry.fate and board.holds_key(entry.fate):
                held[entry.key] = None
        if closing:
            return
        for other in [other for key in held for other in board.keys.chain(key) if _is_loaded(other)]:
            if other.row is not None and was_given_back(other):
                yield _Step(Move.of(other.position, other.row, _dealt_with(other.row, now)), other)
            else:
                dropped.append(other)
        for key in {**held, **dict.fromkeys(self._held_keys())}:
            yield from self._followers(key, written, allowance, now)
        for delivery in board.guards.values():
            entry = delivery.entry
            if entry.guard and not _is_skipped(entry):
                yield _Step(Move.of(entry.position, entry.row, _running(entry, now)), entry, stays=True)

    def _fates(self) -> Iterator[Entry[M]]:
        """What was set aside, as far as there may be more unrouted ones."""
        allowance = _Allowance(self._board.settings.max_unrouted - self._counts.unrouted)
        for entry in self._board.aside.values():
            if not (entry.fate and entry.fate.state is State.UNROUTED) or allowance.take():
                yield entry

    def _followers(
        self, key: str, written: Collection[int], allowance: "_Allowance", now: float
    ) -> Iterator[_Step[M]]:
        for entry in self._waiting_here(key, written):
            if not allowance.take():
                return
            row = entry.as_row(State.WAITING, now)
            yield _Step(Move.of(entry.position, None, row), entry)

    def _held_keys(self) -> Iterator[str]:
        """Keys that are known to have rows before what is here of them."""
        keys = self._board.keys
        return (key for key in keys.stored if key not in keys.unknown and keys.heads[key].place != ASIDE)

    def _waiting_here(self, key: str, written: Collection[int] = ()) -> Iterator[Entry[M]]:
        """New messages that wait behind rows of their key, stored or `written`, and behind nothing without one."""
        if self._board.keys.strays.hold(key):
            return
        for entry in self._board.keys.chain(key):
            if entry.row is not None or entry.place == GONE or entry.position in written:
                continue
            if entry.place != BLOCKED:
                return
            yield entry

    def _ask(self, now: float, scan: Scan[M] | None) -> Ask | None:
        keys = tuple(key for key in self._board.keys.unknown if not self._board.is_busy(key))
        room = self._rows_room()
        looks = room > 0 and self._looks(now)
        if not keys and not looks and scan is None:
            return None
        return Ask(
            now=now,
            limit=max(0, room),
            bytes=max(0, self._board.room_bytes()),
            per_key=max(1, min(_PER_KEY, room // max(1, len(keys)))),
            holding={position: entry.row.revision for position, entry in self._board.rows.items() if entry.row},
            keys=keys,
            due=looks and self._is_due(now),
            heads_after=self._heads_after if looks else None,
            unrouted_after=scan.after if scan else None,
            # What a scan brings back goes out at once, so there is always room for some.
            unrouted_limit=min(max(room, self._rows_kept()), scan.limit) if scan else 0,
            routes=scan.routes if scan else None,
        )

    def _looks(self, now: float) -> bool:
        """Whether rows are to be looked for."""
        return self._heads_after is not None or self._is_due(now)

    def _scans(self) -> bool:
        return self._router is not None and self._router.scan() is not None

    def _is_due(self, now: float) -> bool:
        return self.next_due is not None and self.next_due <= now

    def _rows_room(self) -> int:
        """How many rows may be loaded."""
        return max(self._board.room(), self._rows_kept() - self._board.rows_here())

    def _rows_kept(self) -> int:
        """How many rows there may be though the window is full otherwise."""
        return self._board.settings.window // 8 + 1

    # What the answer means

    def abandon(self) -> None:
        """The exchange was rolled back: nothing of it holds."""
        self._under_way = None
        self._look_after_all()

    def apply(self, answer: Answer[M]) -> Exchange[M]:
        """What was written holds, and what was asked is known."""
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            raise RuntimeError("there is no exchange under way")
        exchange = under_way.exchange
        self._counts = answer.counts
        self._board.has_rows = answer.rows or bool(self._board.keys.strays)
        self._breaker.learn(answer.streak, answer.stalled, answer.counts.retrying, under_way.told)
        if exchange.write is not None:
            self._wrote(exchange.write, under_way, answer.moved)
        if exchange.ask is not None:
            self._learn(exchange.ask, answer)
        if under_way.scan is not None and self._router is not None:
            self._router.scanned(under_way.scan, answer.unrouted, answer.unrouted_end)
        self._look_after_all()
        return exchange

    def _look_after_all(self) -> None:
        later, self._look_later = self._look_later, _NEVER
        if later < _NEVER:
            self.look_at(later)

    def _wrote(self, write: Write, under_way: _UnderWay[M], moves: Sequence[bool]) -> None:
        self._written = write.cursor
        self.settled -= under_way.settled
        self._succeeded -= under_way.told.succeeded
        self._failed -= under_way.told.failed
        left = list(under_way.dropped)
        for step, moved in zip(under_way.steps, moves, strict=False):
            if not moved:
                self.look_at(float("-inf"))
            if step.move.row is not None and step.move.row.due is not None:
                self.look_at(step.move.row.due)
            if step.entry is None:
                self._board.seen.pop(step.move.position, None)
            elif step.move.row is None:
                self._board.forget(step.entry)
            elif not step.stays:
                left.append(step.entry)
            elif moved:
                self._board.start(step.entry, step.move.row)
                self._claims.may_start(step.entry)
            else:
                self._claims.revoke(step.entry)
                self._board.lose(step.entry)
        self._board.leave(left)

    def _learn(self, ask: Ask, answer: Answer[M]) -> None:
        board = self._board
        for key in ask.keys:
            board.keys.unknown.pop(key, None)
            if key not in answer.held:
                board.open_key(key)
        for loaded in answer.due:
            self._look(loaded, answer)
        for key, held in answer.held.items():
            board.take_back_unrouted(key)
            if board.is_busy(key):
                board.keys.unknown[key] = None
            else:
                board.load_key(key, held, ask.now)
        for loaded in answer.due:
            self._look_back(loaded, answer)
        if ask.due:
            self.next_due = answer.next_due
        elif answer.next_due is not None:
            self.look_at(answer.next_due)
        if ask.heads_after is not None:
            self._heads_after = answer.heads_end

    def _look(self, loaded: Loaded[M], answer: Answer[M]) -> None:
        """A row is due: it failed a while ago, or a person decided."""
        board, row = self._board, loaded.row
        entry = board.rows.get(row.position)
        if entry is not None and entry.fate is not None and row.since > entry.fate.since:
            # A person decided after the attempt: what came of that is not written over it.
            board.forget(entry)
            entry = None
        if entry is not None:
            board.update(entry, row)
        elif row.state is State.SKIPPED:
            board.seen[row.position] = row
        elif row.key is None:
            board.make_ready(board.load(loaded))
        if row.key is not None and row.key not in answer.held and not board.is_busy(row.key):
            board.open_key(row.key)

    def _look_back(self, loaded: Loaded[M], answer: Answer[M]) -> None:
        """What is due and may not run waits for its turn in its key, or it would be found due for ever."""
        board, row = self._board, loaded.row
        if row.key is None or row.state is State.SKIPPED or row.position in board.rows:
            return
        held = answer.held.get(row.key)
        is_first = held is not None and row.position <= held.rows[0].row.position
        if board.is_busy(row.key) or not is_first:
            board.seen[row.position] = row


class _Allowance:
    """How many more of something there may be."""

    def __init__(self, left: int) -> None:
        self._left = left

    def take(self) -> bool:
        self._left -= 1
        return self._left >= 0


def _is_skipped(entry: Entry[M]) -> bool:
    return entry.row is not None and entry.row.state is State.SKIPPED


def _is_loaded(entry: Entry[M]) -> bool:
    return entry.row is not None and entry.place not in (ASIDE, OPEN, GUARDED)


def _dealt_with(row: Row, now: float) -> Row:
    """What a row that was due becomes when nothing is to run."""
    if row.state is State.SKIPPED:
        return row.changed(due=None)
    if row.key is None:
        return row.changed(state=State.RETRYING, due=now, since=now)
    return row.changed(state=State.WAITING, due=None, since=now)


def _running(entry: Entry[M], now: float) -> Row:
    """What the row says before the entry starts: also that it runs alone, if it does."""
    row = entry.row or entry.as_row(State.RUNNING, now)
    if entry.suspect:
        row = suspected(row)
    return row.changed(
        state=State.RUNNING,
        since=now,
        due=None,
        consumer=entry.delivery.consumer if entry.delivery else None,
    )
