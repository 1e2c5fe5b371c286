"""The lane of a subscription: fill, hand out, settle, and exchange with the store."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Generic

from milepost.dispatch.breaker import Breaker
from milepost.dispatch.claims import DeliveryClaims
from milepost.dispatch.delivery import (
    STATUS_ASIDE,
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
    LaneState,
    LoadedRow,
    RowCounts,
)
from milepost.dispatch.lane_memory import LaneMemory
from milepost.dispatch.retry import (
    attempted_row,
    blamed_row,
    failed_row,
    is_suspect,
    parked_row,
    postponed_row,
    waiting_row,
)
from milepost.dispatch.routing.route import Route, RouteMember
from milepost.dispatch.routing.router import Router
from milepost.dispatch.routing.routes import Routes
from milepost.dispatch.settings import LimitReached, Settings
from milepost.dispatch.store_sync import StoreSync
from milepost.dispatch.window import check_page_fits
from milepost.ranges import Ranges

_UNLIMITED_DELIVERIES = 2**63
_WORTHWHILE_ROOM_FACTOR = 10
"""A page is read when at least the window divided by this is free, in messages and bytes."""


class Lane(Generic[M]):
    """One lane of a subscription, in the hands of its owner.

    Messages come in with `fill`, go out with `next`, and are settled. Rows and cursor go to the store with
    `exchange`; its answer comes back with `exchanged`. If the outcome of an exchange is unknown, discard the lane
    and make a new one from what is stored. `now` is the database's time, `random` gives numbers from 0 up to 1.
    The lane has no other source of either, so the same calls give the same results.

    With `routes` messages go to consumers; without, to the caller of `next`.
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
        self._lane_memory: LaneMemory[M] = LaneMemory(settings, state, self._is_routed)
        self._router = Router(self._lane_memory, routes) if routes is not None else None
        self._breaker = breaker or Breaker(settings.stall_after, settings.retry.delay)
        self._claims = DeliveryClaims(self._lane_memory, routes, self._breaker)
        self._store_sync = StoreSync(self._lane_memory, self._claims, self._router, self._breaker, state)
        self._closing = False
        self.blamed: list[LaneEntry[M]] = []
        """Entries that ended the process of an earlier owner. The caller reports them and empties the list."""
        self._breaker.learn(state.streak, state.stalled, state.counts.retrying, AttemptTally())
        self._take_suspects(state)

    # Reading

    @property
    def reach(self) -> int:
        """The position after which `fill` wants to go on."""
        return self._lane_memory.window.reach

    def room(self) -> int:
        """Return the number of messages that `fill` can take now."""
        if self._breaker.stalled:
            return 0 if self._lane_memory.window.entries or self._lane_memory.rows else 1
        return max(0, self._lane_memory.room())

    @property
    def is_half_free(self) -> bool:
        """True if at least half of the window is free, in messages and bytes."""
        return self._lane_memory.is_half_free()

    @property
    def is_starved(self) -> bool:
        """True if nothing can be handed out though there is room for more than a few messages.

        Any room is enough if a consumer is idle while others are full: messages that wait for those get rows as
        soon as the window is full.
        """
        if self.has_next:
            return False
        if self._routes is not None and self._routes.idle():
            return True
        memory, settings = self._lane_memory, self._lane_memory.settings
        return (
            _WORTHWHILE_ROOM_FACTOR * memory.room() >= settings.window
            and _WORTHWHILE_ROOM_FACTOR * memory.room_bytes() >= settings.window_bytes
        )

    def fill(self, messages: Sequence[M], keys: Sequence[str] | None, up_to: int) -> bool:
        """Take messages in order. Positions up to `up_to` without a message are another lane's or were rejected.

        `keys` has the key of each message; None without an order. Return False if the window is full: `reach`
        says how far it came.
        """
        check_page_fits(messages, keys, up_to, ordered=self._lane_memory.settings.ordered)
        window = self._lane_memory.window
        full_at = self._lane_memory.take_all(messages, keys, self.room())
        if full_at is not None:
            window.reached(full_at - 1)
            return False
        if up_to > window.reach:
            window.reached(up_to)
        return True

    def unread(self) -> Cursor:
        """Forget messages that no consumer has had, so that they are read again with another filter.

        `fill` goes on after `reach`, which is further back now. Return the position, and the ranges beyond it, in
        which everything is settled, has a row, is with a consumer or was rejected, and stays so.
        """
        self._consumers()
        cursors = [self._lane_memory.window.cursor(), self._store_sync.cursor_under_way() or Cursor(0)]
        after = max(self._lane_memory.touched, *(cursor.position for cursor in cursors))
        done = Ranges(cursors[0].ahead).joined(Ranges(cursors[1].ahead)).beyond(after)
        self._lane_memory.unread(after, done)
        return Cursor(self.reach, tuple(done.beyond(self.reach)))

    # Handing out

    def next(self, now: float, limit: int = _UNLIMITED_DELIVERIES) -> list[LaneDelivery[M]]:
        """Return the deliveries to hand out now, at most `limit`.

        A delivery that is `alone` must have the process for itself: as long as `suspects` is true, nothing else
        should run there. When that becomes false within a call, nothing else goes out in it: call again.
        """
        given = self._claims.start(now, limit)
        limit = self._permitted(now, limit - len(given))
        if self._router is None and not (self._breaker.stalled or self._lane_memory.suspects):
            return given + self._claims.hand_out(self._lane_memory.ready.take(limit), now)
        while limit > 0 and (taken := self._take(now)) is not None:
            limit -= 1
            delivery = self._claims.promise(*taken)
            if not taken[0].guard:
                self._claims.open(delivery, now)
                given.append(delivery)
        return given

    @property
    def suspects(self) -> bool:
        """True if messages wait or run that ran when a process vanished."""
        return self._claims.alone is not None or bool(self._lane_memory.suspects)

    @property
    def has_next(self) -> bool:
        """True if something could be handed out, were it permitted."""
        if self._router is not None:
            return self._router.has_next(self._store_sync.writing)
        return bool(self._lane_memory.ready or self._lane_memory.suspects)

    @property
    def in_flight(self) -> int:
        """Number of deliveries that are handed out or promised."""
        return self._claims.in_flight

    @property
    def promised(self) -> int:
        """Number of deliveries that wait until their rows say that they run."""
        return self._claims.promised

    def deliveries(self) -> list[LaneDelivery[M]]:
        """Return the deliveries that are handed out or promised."""
        entries = [*self._lane_memory.window.entries.values(), *self._lane_memory.rows.values()]
        return [entry.delivery for entry in entries if entry.delivery is not None]

    def handed_out(self) -> dict[int, float | None]:
        """Return the positions of deliveries in force, each with the time at which its consumer began, or None."""
        return {delivery.entry.position: delivery.begun for delivery in self.deliveries()}

    # Settling: each returns the deliveries that were refused because they are no longer in force

    def ack(self, deliveries: Iterable[LaneDelivery[M]]) -> list[LaneDelivery[M]]:
        """Settle deliveries as done."""
        refused: list[LaneDelivery[M]] = []
        entries = self._claims.end_all(deliveries, refused)
        if entries:
            self._store_sync.settled += len(entries)
            self._store_sync.count_successes(len(entries))
            self._lane_memory.finish_all(entries)
        return refused

    skip = ack
    """Settle deliveries as done because they are not wanted."""

    def retry(
        self,
        deliveries: Iterable[LaneDelivery[M]],
        now: float,
        *,
        after: float | None = None,
        count: bool = True,
        within: float | None = None,
        reason: str = "",
        error: str = "",
        cause: type[BaseException] | None = None,
    ) -> list[LaneDelivery[M]]:
        """Try deliveries again `after` so many seconds, by default as the policy says; park them at its limit.

        With `count=False` it is no attempt: there is no limit, and the message comes back after `after` seconds,
        at once by default. With `within` there is one: the message waits for a consumer that can read it, and is
        parked so many seconds after the first time.
        """
        policy = self._lane_memory.settings.retry.policy_for(cause)
        refused: list[LaneDelivery[M]] = []
        for delivery in self._ended(deliveries, refused):
            row = self._attempted(delivery.entry, now, count, reason, error, delivery.consumer)
            if count:
                row = failed_row(row, now, policy, self._random, after)
            elif within is not None:
                row = waiting_row(row, now, after or 0, within)
            else:
                row = postponed_row(row, now, after or 0)
            self._put_aside(delivery.entry, row, now, is_failure=count)
        return refused

    def park(
        self, deliveries: Iterable[LaneDelivery[M]], now: float, *, reason: str = "", error: str = ""
    ) -> list[LaneDelivery[M]]:
        """Give deliveries up until a person decides."""
        refused: list[LaneDelivery[M]] = []
        for delivery in self._ended(deliveries, refused):
            row = self._attempted(delivery.entry, now, True, reason, error, delivery.consumer)
            self._put_aside(delivery.entry, parked_row(row), now, is_failure=True)
        return refused

    def give_back(self, deliveries: Iterable[LaneDelivery[M]]) -> list[LaneDelivery[M]]:
        """Take back deliveries that were not tried: they go out again at once, and nothing is counted."""
        refused: list[LaneDelivery[M]] = []
        for delivery in self._ended(deliveries, refused):
            self._lane_memory.put_back(delivery.entry)
        return refused

    def extend(self, deliveries: Iterable[LaneDelivery[M]], now: float, seconds: float) -> list[LaneDelivery[M]]:
        """Let deliveries time out so many seconds from now."""
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

    def overdue(self, now: float) -> list[LaneDelivery[M]]:
        """Return deliveries that have timed out, each once. The caller settles, extends or gives them back."""
        return self._claims.expired(now)

    # Consumers

    def join(self, consumer: str, routes: Sequence[Route]) -> None:
        """Add a consumer with its routes."""
        self._consumers().join(consumer, routes)

    def configure(self, consumer: str, routes: Sequence[Route]) -> None:
        """Replace the routes of a consumer. Its deliveries stay with it; without any route it gets no more."""
        self._consumers().configure(consumer, routes)

    def share_by(self, strategy: str, bucket_of: Callable[[M], int] | None = None) -> None:
        """Let consumers share messages by another strategy from now on. Their deliveries stay with them."""
        self._consumers().share_by(strategy, bucket_of)

    def doubt(self, consumer: str) -> None:
        """Mark a consumer as late: messages pinned to it go to others until it is trusted again."""
        self._consumers().doubt(consumer)

    def trust(self, consumer: str) -> None:
        """End the doubt about a consumer: it gets its share of what is pinned again."""
        self._consumers().trust(consumer)

    def leave(self, consumer: str) -> None:
        """Remove a consumer that leaves in good order. Its messages go to others, and nothing is counted."""
        self.give_back(list(self._consumers().leave(consumer).deliveries))

    def lose(self, consumer: str, now: float, reason: str = "consumer lost") -> None:
        """Remove a consumer that vanished: that counts as an attempt of each message that it had.

        The circuit breaker counts one failure, however many messages they are.
        """
        had = list(self._consumers().leave(consumer).deliveries)
        self.give_back([delivery for delivery in had if delivery.entry.status == STATUS_GUARDED])
        tried = list(self._ended([delivery for delivery in had if delivery.entry.status == STATUS_OPEN], []))
        if tried:
            self._store_sync.count_failure(now)
        for delivery in tried:
            row = self._attempted(delivery.entry, now, True, reason, consumer=consumer)
            row = failed_row(row, now, self._lane_memory.settings.retry, self._random)
            self._put_aside(delivery.entry, row, now, is_failure=False)

    def held_by(self, consumer: str) -> Collection[LaneDelivery[M]]:
        """Return the deliveries of a consumer, in the order in which they were handed out."""
        return self._consumers().consumers[consumer].deliveries

    # Time and store

    def urgent(self, now: float) -> bool:
        """Return True if an exchange is needed before something can go on."""
        return self._store_sync.is_urgent(now)

    @property
    def dirty(self) -> bool:
        """True if there is something to write, even if only that messages were passed."""
        return self._store_sync.is_dirty()

    @property
    def settled(self) -> int:
        """Number of messages settled since the last write."""
        return self._store_sync.settled

    @property
    def has_rows(self) -> bool:
        """True if rows are stored of this lane, as far as is known."""
        return self._lane_memory.has_rows

    @property
    def tracks_starts(self) -> bool:
        """True if messages get their rows before they start: what `next` promises counts as started."""
        return self._lane_memory.settings.track_all or self._lane_memory.guards_left > 0

    @property
    def is_empty(self) -> bool:
        """True if everything that was taken is settled and written, or is in the store alone."""
        memory = self._lane_memory
        return not (memory.window.entries or memory.rows or memory.seen or self._store_sync.is_under_way)

    @property
    def cursor(self) -> Cursor:
        """The cursor, once everything settled is written."""
        return self._lane_memory.window.cursor()

    @property
    def stopped(self) -> LimitReached | None:
        """The limit because of which it reads no further, `max_waiting` or `max_unrouted`; None: it reads on."""
        return self._store_sync.stopped

    @property
    def counts(self) -> RowCounts:
        """The numbers of rows of the subscription, over all its lanes, in this lane's last answer."""
        return self._store_sync.counts

    def wake_at(self) -> float | None:
        """Return the time of the next time-out, row that is due or probe; None: there is none."""
        times = [self._store_sync.wake_at(), self._claims.next_deadline()]
        breaker = self._breaker
        if breaker.stalled and breaker.probe is None and not self._claims.in_flight and self.has_next:
            times.append(breaker.probe_at)
        return min((time for time in times if time is not None), default=None)

    def poke(self) -> None:
        """Look at the rows with the next exchange: a person has changed some."""
        self._store_sync.note_row_due(float("-inf"))

    def exchange(self, now: float, commits: Sequence[LaneDelivery[M]] = ()) -> Exchange[M] | None:
        """Begin an exchange: return what to write and ask now; None if nothing, or while another is under way.

        `commits` are deliveries that are done if this transaction commits: their handlers wrote in it. ValueError
        if one of them is no longer in force, or another exchange is under way: then it must not commit.
        """
        if self._store_sync.is_under_way:
            if commits:
                raise ValueError("another exchange is under way, so that this transaction would not be fenced")
            return None
        commits = tuple(dict.fromkeys(commits))
        self._check_commits(commits)
        if self._closing:
            self._end_starts(now)
        elif self._router is not None:
            self._router.relieve(now, self._store_sync.unrouted_left())
        exchange = self._store_sync.make(now, commits, self._closing)
        self._claims.commit(commits)
        return exchange

    def exchanged(self, answer: ExchangeAnswer[M]) -> None:
        """End the exchange under way: its transaction has committed, with this answer."""
        exchange = self._store_sync.apply(answer)
        self._claims.release()
        for entry in self._claims.skipped():
            self._lane_memory.finish(entry)
        committed = self._claims.end_all(exchange.commits, [])
        self._lane_memory.finish_all(committed)
        for entry in committed:
            if entry.row is not None:
                # It was removed by the same transaction.
                self._lane_memory.forget(entry)

    def abandon(self) -> None:
        """End the exchange under way as if it had not been tried: its transaction was certainly rolled back."""
        self._store_sync.abandon()
        self._claims.release()
        if self._closing:
            self.close()

    def close(self) -> None:
        """Prepare the release of the lane: nothing more is handed out or asked, open deliveries end uncounted.

        One last `exchange` writes what is left to write.
        """
        self._closing = True
        for entry in [*self._lane_memory.window.entries.values(), *self._lane_memory.rows.values()]:
            if entry.delivery is not None:
                self._claims.end(entry.delivery)

    def discard(self) -> None:
        """Give up the lane, which is lost: nothing in its memory counts, and its deliveries end."""
        self._store_sync.forget_attempts()
        self._store_sync.abandon()
        self._claims.release()
        self.close()

    def change(self, settings: Settings) -> None:
        """Apply other settings from now on, also to the circuit breaker of all lanes."""
        before = self._lane_memory.settings
        if settings.ordered != before.ordered:
            raise ValueError("another order is put in force with `reorder`")
        self._lane_memory.settings = settings
        if settings.on_park != before.on_park:
            self._lane_memory.look_up_all()
            self._store_sync.search_heads()
        self._breaker.stall_after = settings.stall_after
        self._breaker.pace = settings.retry.delay

    @property
    def stored_rows(self) -> dict[int, int | None]:
        """The rows known here: positions and revisions; None: any revision."""
        memory = self._lane_memory
        rows = {entry.position: entry.row for entry in memory.rows.values()} | memory.seen
        revisions = {position: row.revision for position, row in rows.items() if row is not None}
        return {**dict.fromkeys(memory.suspicious), **revisions}

    def reorder(
        self, settings: Settings, key_of: Callable[[M], str | None], rows: Mapping[int, DeliveryRow]
    ) -> None:
        """Apply another order from now on. `key_of` returns None for a message without a key.

        The store has the new order already: `rows` has those of `stored_rows` that had the revision known here, as
        they are now. Deliveries that are out stay with their consumers, and nothing else of their new keys goes
        out before they are settled. Promised ones that are not out yet follow the new order. Only what went out
        before may come again before a lower one of its key. ValueError while an exchange is under way: it would
        write what is no longer true.
        """
        if self._store_sync.is_under_way:
            raise ValueError("an exchange is under way")
        self.give_back(self._claims.promises())
        if self._router is not None:
            self._router.reordered()
        self._lane_memory.reorder(settings, key_of, rows)
        self._store_sync.reordered()

    def _end_starts(self, now: float) -> None:
        """Change rows that say `running`: their messages no longer run. That was no attempt; suspects stay so."""
        for entry in list(self._lane_memory.rows.values()):
            row = entry.row
            if row is None or row.state is not State.RUNNING or entry.guard or _is_outcome_decided(entry):
                continue
            ended = self._attempted(entry, now, False)
            if entry.suspect:
                ended = ended.changed(suspicion=row.suspicion, reason=row.reason)
            self._lane_memory.set_aside(entry, postponed_row(ended, now, 0))

    def _permitted(self, now: float, limit: int) -> int:
        """Return how many more may be handed out."""
        if self._closing:
            return 0
        if self._breaker.stalled and not self._breaker.may_probe(now):
            return 0
        if self._breaker.stalled or self.suspects:
            return min(limit, 0 if self._claims.in_flight else 1)
        return limit - len(self._lane_memory.guards)

    def _take(self, now: float) -> tuple[LaneEntry[M], RouteMember[M] | None] | None:
        memory = self._lane_memory
        if memory.suspects:
            return self._take_suspect(now)
        if self._router is None:
            entry = memory.ready.pop()
            return None if entry is None else (entry, None)
        return self._router.take(now, self._store_sync.writing)

    def _take_suspect(self, now: float) -> tuple[LaneEntry[M], RouteMember[M] | None] | None:
        """Take a suspect that may be tried; nothing else goes out in the same call."""
        if self._router is None:
            entry = self._lane_memory.suspects.pop()
            return None if entry is None else (entry, None)
        while self._lane_memory.suspects and self._routes:
            if (taken := self._router.take_suspect(now, self._store_sync.writing)) is not None:
                return taken
        return None

    def _ended(
        self, deliveries: Iterable[LaneDelivery[M]], refused: list[LaneDelivery[M]]
    ) -> Iterator[LaneDelivery[M]]:
        """End deliveries and yield them. Those no longer in force are added to `refused`."""
        end = self._claims.end
        for delivery in deliveries:
            if end(delivery):
                yield delivery
            else:
                refused.append(delivery)

    def _attempted(
        self,
        entry: LaneEntry[M],
        now: float,
        count: bool,
        reason: str = "",
        error: str = "",
        consumer: str | None = None,
    ) -> DeliveryRow:
        """Return the row of an entry after an attempt, but for its state."""
        row = entry.row or entry.as_row(State.RETRYING, now)
        return attempted_row(row, now, more=int(count), reason=reason, error=error, consumer=consumer)

    def _put_aside(self, entry: LaneEntry[M], row: DeliveryRow, now: float, *, is_failure: bool) -> None:
        self._store_sync.settled += 1
        if is_failure:
            self._store_sync.count_failure(now)
        self._lane_memory.set_aside(entry, row)

    def _take_suspects(self, state: LaneState[M]) -> None:
        """Take over messages whose rows say `running`: their owner is gone, and they are to be tried alone.

        A message that ran alone when its process vanished is to blame: that was an attempt that failed. Without a
        vanished process (this one lost the lane before, or the owner left in good order) it is not. Then its row
        must no longer say that it runs alone, or it would be blamed for the end of a process in which it did not.
        """
        for loaded in state.running:
            self._store_sync.count_failure(state.now)
            if is_suspect(loaded.row):
                self._end_alone(loaded, state)
                continue
            self._lane_memory.suspicious[loaded.row.position] = loaded.message
            if loaded.row.key is not None:
                self._lane_memory.keys.unknown[loaded.row.key] = None
            else:
                self._lane_memory.make_ready(self._lane_memory.load(loaded))

    def _end_alone(self, loaded: LoadedRow[M], state: LaneState[M]) -> None:
        """Blame a message that ran alone for the end of its process, or clear it if none vanished."""
        now = state.now
        entry = self._lane_memory.load(loaded)
        if entry.key is not None:
            self._lane_memory.keys.append(entry, entry.key)
        if state.unclean:
            row = failed_row(blamed_row(loaded.row, now), now, self._lane_memory.settings.retry, self._random)
            self._put_aside(entry, row, now, is_failure=False)
            self.blamed.append(entry)
        else:
            self._lane_memory.set_aside(entry, postponed_row(loaded.row.changed(since=now), now, 0))

    def _is_routed(self, message: M) -> bool:
        return self._routes is None or self._routes.match(message) is not None

    def _consumers(self) -> Routes[M]:
        if self._routes is None:
            raise TypeError("this lane has no routes, and so no consumers")
        return self._routes

    def _check_commits(self, commits: Sequence[LaneDelivery[M]]) -> None:
        if commits and self._routes is not None:
            raise TypeError("what consumers have is settled by them, not by a transaction")
        for delivery in commits:
            if delivery.entry.delivery is not delivery:
                raise ValueError(f"the claim on position {delivery.entry.position} is no longer in force")


def _is_outcome_decided(entry: LaneEntry[M]) -> bool:
    """Return True if the outcome is written for certain: of unrouted entries there may be too many."""
    if entry.status == STATUS_ASIDE:
        return entry.fate is not None and entry.fate.state is not State.UNROUTED
    return entry.status == STATUS_GONE
