"""What a lane has to tell the store and to ask of it, and what it makes of the answer."""

from collections.abc import Iterator, Sequence
from typing import Generic

import msgspec

from milepost.dispatch.board import Board
from milepost.dispatch.breaker import Breaker
from milepost.dispatch.claims import Claims
from milepost.dispatch.delivery import ASIDE, BLOCKED, GUARDED, OPEN, Delivery, Entry, M, Row, State
from milepost.dispatch.exchange import Answer, Ask, Exchange, LaneState, Loaded, Move, Tally, Write
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


class Ledger(Generic[M]):
    """Keeps one exchange under way at a time.

    Making an exchange changes nothing: what it says holds when the answer comes. So one that was rolled back is
    forgotten by `abandon`, and one whose outcome is unknown is left, with the lane, to a new start.
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
        self._steps: list[_Step[M]] = []
        self._dropped: list[Entry[M]] = []
        self._scan: Scan[M] | None = None
        self._look_later = _NEVER
        self.under_way: Exchange[M] | None = None
        self.writing: frozenset[int] = frozenset()
        """The positions that the exchange under way is about."""
        self._succeeded = 0
        self._failed = 0
        self._told = Tally()
        self.settled = 0
        """Messages settled since the last write."""
        self._settled_before = 0
        self.stopped: str | None = None
        """Why the cursor stops though messages wait, if it does."""

    # What has been tried

    def count_success(self) -> None:
        """An attempt succeeded."""
        self._succeeded += 1
        if self._failed:
            self._failed = 0
            self._told = Tally(self._told.succeeded, 0)
        if self._breaker.streak or self._breaker.stalled:
            self._breaker.succeeded()

    def count_failure(self, now: float) -> None:
        """An attempt failed."""
        self._failed += 1
        self._breaker.failed(now)

    # What is to be written and asked

    def is_urgent(self, now: float) -> bool:
        """Whether something can go on only after an exchange."""
        board = self._board
        if board.guards or any(not board.is_busy(key) for key in board.keys.unknown):
            return True
        return self._scans() or (self._rows_room() > 0 and self._looks(now))

    def wake_at(self) -> float | None:
        """When rows are due that there is room for."""
        return self.next_due if self.under_way is None and self._rows_room() > 0 else None

    def look_at(self, due: float) -> None:
        """Some row is due then. What an exchange under way finds may be older than that."""
        if self.under_way is not None:
            self._look_later = min(due, self._look_later)
        else:
            self.next_due = due if self.next_due is None else min(due, self.next_due)

    def unrouted_left(self) -> int:
        """How many more unrouted messages there may be."""
        fates = [entry.fate for entry in self._board.aside.values()]
        coming = sum(1 for fate in fates if fate and fate.state is State.UNROUTED)
        return max(0, self._board.settings.max_unrouted - self._counts.unrouted - coming)

    def make(self, now: float, commits: Sequence[Delivery[M]], closing: bool) -> Exchange[M] | None:
        """The next exchange; None if there is nothing to write and nothing to ask."""
        self._dropped = []
        self._steps = list(self._changes(now, closing))
        write = self._write(commits)
        ask = None if closing else self._ask(now)
        if write is None and ask is None:
            return None
        if write is not None and any(move.replaces is None for move in write.moves):
            # They may be there from now on, though nobody has said so yet.
            self._board.has_rows = True
        self.under_way = Exchange(now, write, ask, tuple(commits))
        self.writing = frozenset(step.move.position for step in self._steps)
        return self.under_way

    def _write(self, commits: Sequence[Delivery[M]]) -> Write | None:
        moves = [step.move for step in self._steps]
        rows = [delivery.entry.row for delivery in commits]
        moves.extend(
            Move.of(row.position, row, None, required=True)
            for row in rows
            if row is not None and row.state is not State.SKIPPED
        )
        passing = {move.position for move in moves}.union(delivery.entry.position for delivery in commits)
        cursor = self._board.window.cursor(passing)
        tally = Tally(self._succeeded + len(commits), 0 if commits else self._failed)
        self._told = Tally(self._succeeded, self._failed)
        self._settled_before = self.settled
        recovers = tally.succeeded and self._breaker.stalled
        if not moves and not commits and cursor == self._written and not recovers:
            return None
        return Write(cursor, moves, tally)

    def _changes(self, now: float, closing: bool) -> Iterator[_Step[M]]:
        board = self._board
        self.stopped = None
        allowance = _Allowance(board.settings.max_waiting - self._counts.waiting)
        for entry in board.finished.values():
            yield _Step(Move.of(entry.position, entry.row, None), entry)
        for row in board.seen.values():
            yield _Step(Move.of(row.position, row, _dealt_with(row, now)))
        for entry in self._fates():
            yield _Step(Move.of(entry.position, entry.row, entry.fate), entry)
            if not closing and entry.key is not None and entry.fate and board.holds_key(entry.fate):
                self._dropped.extend(other for other in board.keys.chain(entry.key) if _is_loaded(other))
                yield from self._followers(entry.key, allowance, now)
        if closing:
            return
        for key in board.keys.stored:
            if key not in board.keys.unknown and board.keys.heads[key].place != ASIDE:
                yield from self._followers(key, allowance, now)
        for delivery in board.guards.values():
            entry = delivery.entry
            if entry.guard and not _is_skipped(entry):
                yield _Step(Move.of(entry.position, entry.row, _running(entry, now)), entry, stays=True)

    def _fates(self) -> Iterator[Entry[M]]:
        """What was set aside, as far as there may be more unrouted ones."""
        allowance = _Allowance(self._board.settings.max_unrouted - self._counts.unrouted)
        for entry in self._board.aside.values():
            if entry.fate and entry.fate.state is State.UNROUTED and not allowance.take():
                self.stopped = f"unrouted: {self._counts.unrouted:,} messages"
            else:
                yield entry

    def _followers(self, key: str, allowance: "_Allowance", now: float) -> Iterator[_Step[M]]:
        """New messages that wait here behind rows of their key."""
        for entry in self._board.keys.chain(key):
            if entry.row is None and entry.place == BLOCKED:
                if not allowance.take():
                    self.stopped = f"waiting behind others: {self._counts.waiting:,} messages, some of key {key!r}"
                    return
                row = Row(position=entry.position, key=key, state=State.WAITING, since=now)
                yield _Step(Move.of(entry.position, None, row), entry)

    def _ask(self, now: float) -> Ask | None:
        keys = tuple(key for key in self._board.keys.unknown if not self._board.is_busy(key))
        room = self._rows_room()
        looks = room > 0 and self._looks(now)
        self._scan = scan = self._router.scan() if self._router else None
        if not keys and not looks and scan is None:
            return None
        return Ask(
            now=now,
            limit=max(0, room),
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
        return max(self._board.room(), self._rows_kept() - len(self._board.rows))

    def _rows_kept(self) -> int:
        """How many rows there may be though the window is full otherwise."""
        return self._board.settings.window // 8 + 1

    # What the answer means

    def abandon(self) -> None:
        """The exchange was rolled back: nothing of it holds."""
        self._end()
        self._look_after_all()

    def apply(self, answer: Answer[M]) -> Exchange[M]:
        """What was written holds, and what was asked is known."""
        exchange = self.under_way
        if exchange is None:
            raise RuntimeError("there is no exchange under way")
        self._end()
        if exchange.write is not None:
            self._wrote(exchange.write, answer)
        if exchange.ask is not None:
            self._learn(exchange.ask, answer)
        self._look_after_all()
        return exchange

    def _end(self) -> None:
        self.under_way = None
        self.writing = frozenset()

    def _look_after_all(self) -> None:
        later, self._look_later = self._look_later, _NEVER
        if later < _NEVER:
            self.look_at(later)

    def _wrote(self, write: Write, answer: Answer[M]) -> None:
        self._written = write.cursor
        self.settled -= self._settled_before
        self._succeeded -= self._told.succeeded
        self._failed -= self._told.failed
        self._breaker.learn(answer.streak, answer.stalled, answer.counts.retrying, self._told)
        self._counts = answer.counts
        self._board.has_rows = answer.rows
        left = list(self._dropped)
        for step, moved in zip(self._steps, answer.moved, strict=False):
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
        self._counts = answer.counts
        board.has_rows = answer.rows
        for key in ask.keys:
            board.keys.unknown.pop(key, None)
            if key not in answer.held:
                board.open_key(key)
        for loaded in answer.due:
            self._look(loaded, answer)
        for key, held in answer.held.items():
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
        if self._scan is not None and self._router is not None:
            self._router.scanned(self._scan, answer.unrouted, answer.unrouted_end)

    def _look(self, loaded: Loaded[M], answer: Answer[M]) -> None:
        """A row is due: it failed a while ago, or a person decided."""
        board, row = self._board, loaded.row
        entry = board.rows.get(row.position)
        if entry is not None:
            board.update(entry, row)
        elif row.state is State.SKIPPED:
            board.seen[row.position] = row
        elif row.key is None:
            board.make_ready(board.load(loaded))
        if row.key is not None and row.key not in answer.held and not board.is_busy(row.key):
            board.open_key(row.key)

    def _look_back(self, loaded: Loaded[M], answer: Answer[M]) -> None:
        """What is due and may not run waits behind the first of its key, or it would be found due for ever."""
        row = loaded.row
        held = answer.held.get(row.key) if row.key is not None else None
        if held and row.position > held.rows[0].row.position and row.position not in self._board.rows:
            self._board.seen[row.position] = row


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
    return row.changed(state=State.WAITING, due=None, since=now)


def _running(entry: Entry[M], now: float) -> Row:
    """What the row says before the entry starts; what ran when a process vanished is counted beforehand."""
    if entry.row is None:
        return Row(position=entry.position, key=entry.key, state=State.RUNNING, since=now)
    counted = 1 if entry.suspect else 0
    row = entry.row
    return row.changed(
        state=State.RUNNING, since=now, due=None, attempts=row.attempts + counted, total=row.total + counted
    )
