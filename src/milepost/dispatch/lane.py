"""A lane: decides which message goes to whom, what is stored of it, and how far the cursor may move."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Generic

from milepost.dispatch.attempts import attempted, blamed, failed, is_suspect, parked, postponed, waiting
from milepost.dispatch.board import Board
from milepost.dispatch.breaker import Breaker
from milepost.dispatch.claims import Claims
from milepost.dispatch.delivery import ASIDE, BLOCKED, GONE, GUARDED, OPEN, READY, Delivery, Entry, M, Row, State
from milepost.dispatch.exchange import Answer, Counts, Cursor, Exchange, LaneState, Loaded, Tally
from milepost.dispatch.ledger import Ledger
from milepost.dispatch.limit import LimitReached
from milepost.dispatch.member import Member
from milepost.dispatch.route import Route
from milepost.dispatch.router import Router
from milepost.dispatch.routes import Routes
from milepost.dispatch.settings import Settings
from milepost.dispatch.window import check_page
from milepost.ranges import Ranges

_UNLIMITED = 2**63
_WORTHWHILE = 10
"""Room for one in so many messages and bytes of the window is worth reading a page for."""


class Lane(Generic[M]):
    """One lane of a subscription, as its owner sees it from taking it to leaving it.

    Messages come in with `fill`, go out with `next`, and are settled. Rows and cursor go to the store with
    `exchange`, whose answer comes back with `exchanged`; after an exchange that failed the lane is thrown away and
    made again from what is stored. `now` is the database's time, `random` gives numbers from 0 up to 1; the lane
    has no other source of either, so the same calls give the same results.

    With `routes` messages go to consumers; without, to whoever calls `next`.
    """

    def __init__(
        self,
        settings: Settings,
        state: LaneState[M],
        *,
        breaker: Breaker | None = None,
        routes: Routes[M] | None = None,
        random: Callable[[], float],
    ) -> None:
        self._random = random
        self._routes = routes
        self._board: Board[M] = Board(settings, state, self._is_routed)
        self._router = Router(self._board, routes) if routes is not None else None
        self._breaker = breaker or Breaker(settings.stall_after, settings.retry.delay)
        self._claims = Claims(self._board, routes, self._breaker)
        self._ledger = Ledger(self._board, self._claims, self._router, self._breaker, state)
        self._closing = False
        self.blamed: list[Entry[M]] = []
        """What ended the process of an owner before this one; for whoever has to know, who empties it."""
        self._breaker.learn(state.streak, state.stalled, state.counts.retrying, Tally())
        self._take_suspects(state)

    # Reading

    @property
    def reach(self) -> int:
        """The position after which `fill` wants to go on."""
        return self._board.window.reach

    @property
    def ordered(self) -> bool:
        """Whether `fill` wants keys."""
        return self._board.settings.ordered

    def room(self) -> int:
        """How many messages `fill` can take now."""
        if self._breaker.stalled:
            return 0 if self._board.window.entries or self._board.rows else 1
        return max(0, self._board.room())

    @property
    def is_half_free(self) -> bool:
        """Whether at least half of the window is free, in messages and bytes."""
        return self._board.is_half_free()

    @property
    def is_starved(self) -> bool:
        """Whether nothing can be handed out, though there is room for more than a few messages.

        Any room will do where a consumer has nothing to do while others are full: what waits for those gets rows
        as soon as the window is full.
        """
        if self.has_next:
            return False
        if self._routes is not None and self._routes.idle():
            return True
        board, settings = self._board, self._board.settings
        return (
            _WORTHWHILE * board.room() >= settings.window
            and _WORTHWHILE * board.room_bytes() >= settings.window_bytes
        )

    def fill(self, messages: Sequence[M], keys: Sequence[str] | None, up_to: int) -> bool:
        """Takes messages in order; what is not among them up to `up_to` is another lane's or was rejected.

        `keys` has the key of each message; None without an order. False if the window is full: `reach` says
        how far it came.
        """
        check_page(messages, keys, up_to, ordered=self._board.settings.ordered)
        window = self._board.window
        full_at = self._board.take_all(messages, keys, self.room())
        if full_at is not None:
            window.reached(full_at - 1)
            return False
        if up_to > window.reach:
            window.reached(up_to)
        return True

    def unread(self) -> Cursor:
        """Forgets what was taken and no consumer has had: it is to be read again, in another light.

        `fill` goes on after `reach`, which is further back now. Returns up to where, and in which ranges beyond,
        everything is settled, has a row, is with a consumer or was rejected, and stays so.
        """
        self._consumers()
        cursors = [self._board.window.cursor(), self._ledger.cursor_under_way() or Cursor(0)]
        after = max(self._board.touched, *(cursor.position for cursor in cursors))
        done = Ranges(cursors[0].ahead).joined(Ranges(cursors[1].ahead)).beyond(after)
        self._board.unread(after, done)
        return Cursor(self.reach, tuple(done.beyond(self.reach)))

    # Handing out

    def next(self, now: float, limit: int = _UNLIMITED) -> list[Delivery[M]]:
        """What is to be handed out now, at most `limit`.

        A delivery that is `alone` must have the process for itself: as long as `suspects` is true, nothing else
        should run there. When that becomes false within a call, nothing else goes out in it: call again.
        """
        given = self._claims.start(now, limit)
        limit = self._permitted(now, limit - len(given))
        if self._router is None and not (self._breaker.stalled or self._board.suspects):
            return given + self._claims.hand_out(self._board.ready.take(limit), now)
        while limit > 0 and (taken := self._take(now)) is not None:
            limit -= 1
            delivery = self._claims.promise(*taken)
            if not taken[0].guard:
                self._claims.open(delivery, now)
                given.append(delivery)
        return given

    @property
    def suspects(self) -> bool:
        """Whether messages wait or run that ran when a process vanished."""
        return self._claims.alone is not None or bool(self._board.suspects)

    @property
    def has_next(self) -> bool:
        """Whether something could be handed out, if that were permitted."""
        if self._router is not None:
            return self._router.has_next(self._ledger.writing)
        return bool(self._board.ready or self._board.suspects)

    @property
    def in_flight(self) -> int:
        """How many deliveries are handed out, or promised."""
        return self._claims.in_flight

    @property
    def promised(self) -> int:
        """How many of those wait until their rows say that they run."""
        return self._claims.promised

    def deliveries(self) -> list[Delivery[M]]:
        """What is handed out, or promised."""
        entries = [*self._board.window.entries.values(), *self._board.rows.values()]
        return [entry.delivery for entry in entries if entry.delivery is not None]

    def handed_out(self) -> dict[int, float | None]:
        """The positions of what is handed out, or promised, and when its consumer began with it, if it has."""
        return {delivery.entry.position: delivery.begun for delivery in self.deliveries()}

    # Settling: each returns what was refused, because it is no longer that claim's

    def ack(self, deliveries: Iterable[Delivery[M]]) -> list[Delivery[M]]:
        """They are done."""
        refused: list[Delivery[M]] = []
        entries = self._claims.end_all(deliveries, refused)
        if entries:
            self._ledger.settled += len(entries)
            self._ledger.count_successes(len(entries))
            self._board.finish_all(entries)
        return refused

    skip = ack
    """They are not wanted: done, for whoever has to know it."""

    def retry(
        self,
        deliveries: Iterable[Delivery[M]],
        now: float,
        *,
        after: float | None = None,
        count: bool = True,
        within: float | None = None,
        reason: str = "",
        error: str = "",
        cause: type[BaseException] | None = None,
    ) -> list[Delivery[M]]:
        """They failed: tried again `after` so many seconds, or as the policy says, or parked at its limit.

        With `count=False` it is no attempt: there is no limit, and it comes back after `after` seconds, at once
        by default. With `within` there is one: it waits for somebody who can read it, and is parked if nobody does
        in so many seconds from the first time on.
        """
        policy = self._board.settings.retry.policy_for(cause)
        refused: list[Delivery[M]] = []
        for delivery in self._ended(deliveries, refused):
            row = self._attempted(delivery.entry, now, count, reason, error, delivery.consumer)
            if count:
                row = failed(row, now, policy, self._random, after)
            elif within is not None:
                row = waiting(row, now, after or 0, within)
            else:
                row = postponed(row, now, after or 0)
            self._put_aside(delivery.entry, row, now, is_failure=count)
        return refused

    def park(
        self, deliveries: Iterable[Delivery[M]], now: float, *, reason: str = "", error: str = ""
    ) -> list[Delivery[M]]:
        """They are given up until a person decides."""
        refused: list[Delivery[M]] = []
        for delivery in self._ended(deliveries, refused):
            row = self._attempted(delivery.entry, now, True, reason, error, delivery.consumer)
            self._put_aside(delivery.entry, parked(row), now, is_failure=True)
        return refused

    def give_back(self, deliveries: Iterable[Delivery[M]]) -> list[Delivery[M]]:
        """They were not tried: they go out again at once, and nothing is counted."""
        refused: list[Delivery[M]] = []
        for delivery in self._ended(deliveries, refused):
            self._board.put_back(delivery.entry)
        return refused

    def extend(self, deliveries: Iterable[Delivery[M]], now: float, seconds: float) -> list[Delivery[M]]:
        """They time out so many seconds from now."""
        # Written so that NaN is refused as well.
        if not 0 < seconds < float("inf"):
            raise ValueError(f"a delivery is extended by more than 0 seconds, not {seconds}")
        refused = []
        for delivery in deliveries:
            if delivery.entry.delivery is delivery:
                self._claims.expire_at(delivery, now + seconds)
            else:
                refused.append(delivery)
        return refused

    def stop(self, delivery: Delivery[M], now: float, reason: str = "") -> list[Delivery[M]]:
        """It is tried again, and its consumer gets no more: what else it has goes to others."""
        refused = self.retry([delivery], now, reason=reason)
        if not refused and delivery.consumer is not None:
            self.leave(delivery.consumer)
        return refused

    def overdue(self, now: float) -> list[Delivery[M]]:
        """What has timed out, each told once: whoever drives the lane settles, extends or gives it back."""
        return self._claims.expired(now)

    def expire(self, now: float) -> list[Delivery[M]]:
        """Takes back what has timed out, each an attempt; returns it."""
        expired = self.overdue(now)
        self.retry(expired, now, reason="timed out")
        return expired

    # Consumers

    def join(self, consumer: str, routes: Sequence[Route]) -> None:
        """A consumer comes."""
        self._consumers().join(consumer, routes)

    def configure(self, consumer: str, routes: Sequence[Route]) -> None:
        """A consumer's routes are others from now on; what it has stays with it. Without any it drains."""
        self._consumers().configure(consumer, routes)

    def share_by(self, strategy: str, bucket_of: Callable[[M], int] | None = None) -> None:
        """Consumers share messages by another strategy from now on; what they have stays with them."""
        self._consumers().share_by(strategy, bucket_of)

    def doubt(self, consumer: str) -> None:
        """A consumer was late: what is pinned to it goes to others, until it is trusted again."""
        self._consumers().doubt(consumer)

    def trust(self, consumer: str) -> None:
        """A consumer keeps up again: it gets its share of what is pinned."""
        self._consumers().trust(consumer)

    def leave(self, consumer: str) -> None:
        """A consumer goes in good order: what it has goes to others, and nothing is counted."""
        self.give_back(list(self._consumers().leave(consumer).deliveries))

    def lose(self, consumer: str, now: float, reason: str = "consumer lost") -> None:
        """A consumer has vanished: what it had counts as an attempt of each message.

        It is one failure in the breaker's row of them, however much that consumer had.
        """
        had = list(self._consumers().leave(consumer).deliveries)
        self.give_back([delivery for delivery in had if delivery.entry.place == GUARDED])
        tried = list(self._ended([delivery for delivery in had if delivery.entry.place == OPEN], []))
        if tried:
            self._ledger.count_failure(now)
        for delivery in tried:
            row = self._attempted(delivery.entry, now, True, reason, consumer=consumer)
            row = failed(row, now, self._board.settings.retry, self._random)
            self._put_aside(delivery.entry, row, now, is_failure=False)

    def held_by(self, consumer: str) -> Collection[Delivery[M]]:
        """What a consumer has, in the order in which it was handed out."""
        return self._consumers().consumers[consumer].deliveries

    # Time and store

    def urgent(self, now: float) -> bool:
        """Whether an exchange is needed before something can go on."""
        return self._ledger.is_urgent(now)

    @property
    def dirty(self) -> bool:
        """Whether there is something to write, if only that messages were passed."""
        return self._ledger.is_dirty()

    @property
    def settled(self) -> int:
        """How many messages were settled since the last write."""
        return self._ledger.settled

    @property
    def has_rows(self) -> bool:
        """Whether rows are stored of this lane, as far as is known."""
        return self._board.has_rows

    @property
    def tracks_starts(self) -> bool:
        """Whether messages have their rows before they start: what `next` promises counts as started."""
        return self._board.settings.track_all or self._board.guards_left > 0

    @property
    def is_empty(self) -> bool:
        """Whether everything that was taken is settled and written, or in the store alone."""
        board = self._board
        return not (board.window.entries or board.rows or board.seen or self._ledger.is_under_way)

    @property
    def cursor(self) -> Cursor:
        """Where the cursor stands, once what is settled is written."""
        return self._board.window.cursor()

    @property
    def stopped(self) -> LimitReached | None:
        """The limit at which it reads no further, if it is there: `max_waiting` or `max_unrouted`."""
        return self._ledger.stopped

    @property
    def counts(self) -> Counts:
        """How many rows the subscription has, of all its lanes, as this lane's last answer said."""
        return self._ledger.counts

    def wake_at(self) -> float | None:
        """When something is to be done though nothing happens: a time-out, a row that is due, a probe."""
        times = [self._ledger.wake_at(), self._claims.next_deadline()]
        breaker = self._breaker
        if breaker.stalled and breaker.probe is None and not self._claims.in_flight and self.has_next:
            times.append(breaker.probe_at)
        return min((time for time in times if time is not None), default=None)

    def poke(self) -> None:
        """A person has changed rows: they are looked at with the next exchange."""
        self._ledger.look_at(float("-inf"))

    def exchange(self, now: float, commits: Sequence[Delivery[M]] = ()) -> Exchange[M] | None:
        """What is to be written and asked now; None if nothing is, or while another exchange is under way.

        `commits` are deliveries that are done if this transaction commits: their handlers wrote in it. ValueError
        if one of them is no longer in force, or another exchange is under way: then it must not commit.
        """
        if self._ledger.is_under_way:
            if commits:
                raise ValueError("another exchange is under way, so that this transaction would not be fenced")
            return None
        commits = tuple(dict.fromkeys(commits))
        self._check_commits(commits)
        if self._closing:
            self._end_starts(now)
        elif self._router is not None:
            self._router.relieve(now, self._ledger.unrouted_left())
        exchange = self._ledger.make(now, commits, self._closing)
        self._claims.commit(commits)
        return exchange

    def exchanged(self, answer: Answer[M]) -> None:
        """The transaction has committed, and this is what it found."""
        exchange = self._ledger.apply(answer)
        self._claims.release()
        for entry in self._claims.skipped():
            self._board.finish(entry)
        committed = self._claims.end_all(exchange.commits, [])
        self._board.finish_all(committed)
        for entry in committed:
            if entry.row is not None:
                # It was removed by the same transaction.
                self._board.forget(entry)

    def abandon(self) -> None:
        """The transaction was rolled back, for certain: all is as if it had not been tried."""
        self._ledger.abandon()
        self._claims.release()
        if self._closing:
            self.close()

    def close(self) -> None:
        """The lane is to be released: nothing more is handed out or asked, open claims end uncounted.

        One last `exchange` writes what is left to write.
        """
        self._closing = True
        for entry in [*self._board.window.entries.values(), *self._board.rows.values()]:
            if entry.delivery is not None:
                self._claims.end(entry.delivery)

    def discard(self) -> None:
        """The lane is lost: whatever it had in memory is of no use, and its claims end."""
        self._ledger.forget_attempts()
        self._ledger.abandon()
        self._claims.release()
        self.close()

    def convert(self, now: float) -> None:
        """Everything that was taken gets its row instead of being handed out: for those who pull."""
        for entry in self._board.window.entries.values():
            if entry.place in (READY, BLOCKED):
                self._board.set_aside(entry, entry.as_row(State.WAITING, now))

    def change(self, settings: Settings) -> None:
        """Other settings from now on, for the breaker of all lanes too."""
        before = self._board.settings
        if settings.ordered != before.ordered:
            raise ValueError("another order is put in force with `reorder`")
        self._board.settings = settings
        if settings.on_park != before.on_park:
            self._board.look_up_all()
            self._ledger.look_for_heads()
        self._breaker.stall_after = settings.stall_after
        self._breaker.pace = settings.retry.delay

    @property
    def stored_rows(self) -> dict[int, int | None]:
        """The rows that are known here: their positions and revisions; None: any."""
        board = self._board
        rows = {entry.position: entry.row for entry in board.rows.values()} | board.seen
        revisions = {position: row.revision for position, row in rows.items() if row is not None}
        return {**dict.fromkeys(board.suspicious), **revisions}

    def reorder(self, settings: Settings, key_of: Callable[[M], str | None], rows: Mapping[int, Row]) -> None:
        """Another order from now on, whatever is out; None is the key of a message without one.

        The store has it already: `rows` has what it says now of those of `stored_rows` that had the revision known
        here. What is out stays with whoever has it, and nothing else of its new key goes out before it is settled;
        what is promised, and not out yet, goes by the new order. Only what went out before may come again before a
        lower one of its key. ValueError while an exchange is under way: it would write what is no longer so.
        """
        if self._ledger.is_under_way:
            raise ValueError("an exchange is under way")
        self.give_back(self._claims.promises())
        if self._router is not None:
            self._router.reordered()
        self._board.reorder(settings, key_of, rows)
        self._ledger.reordered()

    def _end_starts(self, now: float) -> None:
        """What a row says to be running no longer does, and was no attempt; a suspect stays one."""
        for entry in list(self._board.rows.values()):
            row = entry.row
            if row is None or row.state is not State.RUNNING or entry.guard or _is_decided(entry):
                continue
            ended = self._attempted(entry, now, False)
            if entry.suspect:
                ended = ended.changed(suspicion=row.suspicion, reason=row.reason)
            self._board.set_aside(entry, postponed(ended, now, 0))

    def _permitted(self, now: float, limit: int) -> int:
        """How many more may be handed out."""
        if self._closing:
            return 0
        if self._breaker.stalled and not self._breaker.may_probe(now):
            return 0
        if self._breaker.stalled or self.suspects:
            return min(limit, 0 if self._claims.in_flight else 1)
        return limit - len(self._board.guards)

    def _take(self, now: float) -> tuple[Entry[M], Member[M] | None] | None:
        board = self._board
        if board.suspects:
            return self._take_suspect(now)
        if self._router is None:
            entry = board.ready.pop()
            return None if entry is None else (entry, None)
        return self._router.take(now, self._ledger.writing)

    def _take_suspect(self, now: float) -> tuple[Entry[M], Member[M] | None] | None:
        """A suspect that may be tried; nothing else goes out in the same breath."""
        if self._router is None:
            entry = self._board.suspects.pop()
            return None if entry is None else (entry, None)
        while self._board.suspects and self._routes:
            if (taken := self._router.take_suspect(now, self._ledger.writing)) is not None:
                return taken
        return None

    def _ended(self, deliveries: Iterable[Delivery[M]], refused: list[Delivery[M]]) -> Iterator[Delivery[M]]:
        """Ends claims and gives them; those that were no longer in force are refused."""
        end = self._claims.end
        for delivery in deliveries:
            if end(delivery):
                yield delivery
            else:
                refused.append(delivery)

    def _attempted(
        self,
        entry: Entry[M],
        now: float,
        count: bool,
        reason: str = "",
        error: str = "",
        consumer: str | None = None,
    ) -> Row:
        """What is to be stored of an entry after an attempt, save for the state."""
        row = entry.row or entry.as_row(State.RETRYING, now)
        return attempted(row, now, more=int(count), reason=reason, error=error, consumer=consumer)

    def _put_aside(self, entry: Entry[M], row: Row, now: float, *, is_failure: bool) -> None:
        self._ledger.settled += 1
        if is_failure:
            self._ledger.count_failure(now)
        self._board.set_aside(entry, row)

    def _take_suspects(self, state: LaneState[M]) -> None:
        """What ran when its process vanished is tried alone, after what is before it in its key.

        What ran alone then is to blame: that was an attempt, as any other that failed. Nothing is where no process
        vanished: this one lost the lane before, or its owner left in good order. Then its row must not say for
        longer that it runs alone, or it would be blamed for the end of a process in which it did not.
        """
        for loaded in state.running:
            self._ledger.count_failure(state.now)
            if is_suspect(loaded.row):
                self._end_alone(loaded, state)
                continue
            self._board.suspicious[loaded.row.position] = loaded.message
            if loaded.row.key is not None:
                self._board.keys.unknown[loaded.row.key] = None
            else:
                self._board.make_ready(self._board.load(loaded))

    def _end_alone(self, loaded: Loaded[M], state: LaneState[M]) -> None:
        """What ran alone does so no longer."""
        now = state.now
        entry = self._board.load(loaded)
        if entry.key is not None:
            self._board.keys.append(entry, entry.key)
        if state.unclean:
            row = failed(blamed(loaded.row, now), now, self._board.settings.retry, self._random)
            self._put_aside(entry, row, now, is_failure=False)
            self.blamed.append(entry)
        else:
            self._board.set_aside(entry, postponed(loaded.row.changed(since=now), now, 0))

    def _is_routed(self, message: M) -> bool:
        return self._routes is None or self._routes.match(message) is not None

    def _consumers(self) -> Routes[M]:
        if self._routes is None:
            raise TypeError("this lane has no routes, and so no consumers")
        return self._routes

    def _check_commits(self, commits: Sequence[Delivery[M]]) -> None:
        if commits and self._routes is not None:
            raise TypeError("what consumers have is settled by them, not by a transaction")
        for delivery in commits:
            if delivery.entry.delivery is not delivery:
                raise ValueError(f"the claim on position {delivery.entry.position} is no longer in force")


def _is_decided(entry: Entry[M]) -> bool:
    """Whether what becomes of it is written for certain: of unrouted ones there may be too many."""
    if entry.place == ASIDE:
        return entry.fate is not None and entry.fate.state is not State.UNROUTED
    return entry.place == GONE
