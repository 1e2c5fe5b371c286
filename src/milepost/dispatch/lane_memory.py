"""The entries that a lane has in memory, and how they move from status to status."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat, takewhile
from operator import attrgetter
from typing import Generic

from milepost.dispatch.delivery import (
    STATUS_ASIDE,
    STATUS_BLOCKED,
    STATUS_GONE,
    STATUS_GUARDED,
    STATUS_OPEN,
    STATUS_READY,
    DeliveryRow,
    LaneDelivery,
    LaneEntry,
    M,
    State,
)
from milepost.dispatch.exchange import HeldKey, LaneState, LoadedRow
from milepost.dispatch.keys import Keys
from milepost.dispatch.queue import Queue
from milepost.dispatch.retry import is_suspect
from milepost.dispatch.settings import Settings
from milepost.dispatch.window import Window
from milepost.ranges import Ranges

_BUSY_STATUSES = (STATUS_OPEN, STATUS_GUARDED, STATUS_ASIDE)
_position = attrgetter("position")


class LaneMemory(Generic[M]):
    """The entries of a lane in memory.

    A message of the log is in `window.entries` until it is settled or has a row. A message whose row was loaded,
    or was written before it started, is in `rows`. An entry that has to get a row, or another one, is in `aside`
    as well; one with a row that is done is in `finished`. Both stay there until that is written.
    """

    def __init__(self, settings: Settings, state: LaneState[M], is_routed: Callable[[M], bool]) -> None:
        self.settings = settings
        self._is_routed = is_routed
        self.window: Window[M] = Window(state.cursor)
        self.keys: Keys[M] = Keys()
        self.ready: Queue[M] = Queue()
        self.suspects: Queue[M] = Queue()
        self.rows: dict[int, LaneEntry[M]] = {}
        self.aside: dict[int, LaneEntry[M]] = {}
        self.finished: dict[int, LaneEntry[M]] = {}
        self.seen: dict[int, DeliveryRow] = {}
        """Rows that were due or running and must not run: a person skipped them, or an earlier one comes first."""
        self.guards: dict[int, LaneDelivery[M]] = {}
        """Promised deliveries: handed out as soon as their rows say that they run."""
        self.suspicious: dict[int, M] = {}
        """Messages whose rows said `running` when a process vanished, and do not say yet that they run alone."""
        self.bytes = 0
        self.lent = 0
        self.lent_bytes = 0
        """Number and bytes of messages that consumers have: their capacities limit them, not the window."""
        self.touched = state.cursor.position
        """The highest position that went to a consumer or got a row."""
        self.has_rows = state.rows
        self.begun = state.now
        """Rows that came into their state before this may have been started by an owner that vanished."""
        self.on_probation = state.unclean
        self.guards_left = settings.probation if state.unclean else 0

    def room(self) -> int:
        """Return the number of messages that may be taken."""
        if self.room_bytes() <= 0:
            return 0
        return self.settings.window - len(self.window.entries) - len(self.rows) + self.lent

    def room_bytes(self) -> int:
        """Return the bytes of messages that may be taken."""
        return self.settings.window_bytes - self.bytes + self.lent_bytes

    def is_half_free(self) -> bool:
        """Return True if at least half of the window is free."""
        settings = self.settings
        return 2 * self.room() >= settings.window and 2 * self.room_bytes() >= settings.window_bytes

    def rows_here(self) -> int:
        """Return the number of rows in memory that no consumer has."""
        if not self.lent:
            return len(self.rows)
        return sum(1 for entry in self.rows.values() if not (entry.delivery and entry.delivery.member))

    def lend(self, entry: LaneEntry[M]) -> None:
        """Note that a consumer has an entry."""
        self.lent += 1
        self.lent_bytes += entry.size

    def returned(self, entry: LaneEntry[M]) -> None:
        """Note that a consumer no longer has an entry."""
        self.lent -= 1
        self.lent_bytes -= entry.size

    # From the log

    def take_all(self, messages: Sequence[M], keys: Sequence[str] | None, room: int) -> int | None:
        """Take new messages, in order, while there is room; return the position of the first without room.

        Every message passes here, so nothing is called that need not be.
        """
        window, heads = self.window, self.keys.heads
        entries, reach, some_done = window.entries, window.reach, window.some_done
        guards, has_rows = bool(self.guards_left or self.settings.track_all), self.has_rows
        room_bytes = self.room_bytes()
        ready: list[LaneEntry[M]] = []
        full_at, volume = None, 0
        for message, key in zip(messages, repeat(None) if keys is None else keys, strict=False):
            position = message.position
            if position <= reach or (some_done and window.is_done(position)):
                continue
            if room <= 0 or room_bytes <= 0:
                full_at = position
                break
            room -= 1
            size = message.size
            room_bytes -= size
            volume += size
            entry = LaneEntry(position, message, key, size)
            entries[position] = entry
            if guards:
                guards = self._guard(entry)
            if key is not None:
                head = heads.get(key)
                if head is not None:
                    (head.last or head).next = entry
                    head.last = entry
                    continue
                heads[key] = entry
                if has_rows:
                    self.keys.unknown[key] = None
                    continue
            entry.status = STATUS_READY
            ready.append(entry)
        self.bytes += volume
        self.ready.push_all(ready)
        return full_at

    def _guard(self, entry: LaneEntry[M]) -> bool:
        """Make an entry get its row before it starts; return True if the next one has to as well."""
        entry.guard = True
        self.guards_left = max(0, self.guards_left - 1)
        return bool(self.guards_left or self.settings.track_all)

    def unread(self, after: int, done: Ranges) -> None:
        """Forget the messages above a position, none of which has gone out, so that they are read again."""
        above = [entry for position, entry in self.window.entries.items() if position > after]
        for entry in above:
            self.guards_left += entry.guard
            self.forget(entry)
        for key in {entry.key for entry in above if entry.key is not None}:
            self.keys.rebuild(key, [])
            if key not in self.keys.heads:
                self.keys.stored.pop(key, None)
        self.window.rewind(after, done)

    def make_ready(self, entry: LaneEntry[M]) -> None:
        """Queue an entry to be handed out."""
        entry.status = STATUS_READY
        (self.suspects if entry.suspect else self.ready).push(entry)

    # Settled

    def finish(self, entry: LaneEntry[M]) -> None:
        """Settle an entry as done."""
        entry.status = STATUS_GONE
        if entry.suspect:
            self.suspicious.pop(entry.position, None)
        if entry.row is None:
            del self.window.entries[entry.position]
            self.bytes -= entry.size
        elif entry.row.state is State.SKIPPED:
            self._keep_skipped(entry, entry.row)
        else:
            self.finished[entry.position] = entry
        self._free(entry)

    def finish_all(self, entries: Iterable[LaneEntry[M]]) -> None:
        """Settle entries as done. Every healthy message passes here, so nothing is called that need not be."""
        of_window, keys = self.window.entries, self.keys
        heads, unknown, stored, strays = keys.heads, keys.unknown, keys.stored, keys.strays
        freed: list[LaneEntry[M]] = []
        volume = 0
        for entry in entries:
            if entry.row is not None or entry.suspect or (strays and entry.position in strays):
                self.finish(entry)
                continue
            entry.status = STATUS_GONE
            del of_window[entry.position]
            volume += entry.size
            key = entry.key
            if key is None:
                continue
            following = entry.next
            if key in unknown or key in stored:
                self._free(entry)
            elif following is None:
                del heads[key]
            elif following.status != STATUS_BLOCKED or following.suspect:
                self._free(entry)
            else:
                heads[key] = following
                if following is not entry.last:
                    following.last = entry.last
                entry.next = entry.last = None
                following.status = STATUS_READY
                freed.append(following)
        self.bytes -= volume
        if freed:
            freed.sort(key=_position)
            self.ready.push_all(freed)

    def set_aside(self, entry: LaneEntry[M], fate: DeliveryRow) -> None:
        """Give an entry a row, or another one, with the next write."""
        if entry.row is not None and entry.row.state is State.SKIPPED:
            self.finish(entry)
            return
        entry.status = STATUS_ASIDE
        entry.fate = fate
        self.aside[entry.position] = entry
        self.touched = max(self.touched, entry.position)
        if not self.holds_key(fate):
            self._free(entry)

    def reorder(
        self, settings: Settings, key_of: Callable[[M], str | None], rows: Mapping[int, DeliveryRow]
    ) -> None:
        """Give every entry its key anew. `rows` has the rows that are here, as they are stored by now.

        Entries that are out, or wait to be written, stay so and hold their new keys: several of one key may be
        out.
        """
        self.settings = settings
        self.keys.clear()
        self.ready.clear()
        self.suspects.clear()
        seen = [rows[position] for position in self.seen if position in rows]
        # Without a key nothing waits for its turn.
        stays = (State.RUNNING, State.SKIPPED)
        self.seen = {row.position: row for row in seen if row.key is not None or row.state in stays}
        for entry in list(self.aside.values()):
            if entry.fate is not None and entry.fate.state is State.UNROUTED:
                self.recall(entry)
        waiting: list[LaneEntry[M]] = []
        for entry in sorted([*self.window.entries.values(), *self.rows.values()]):
            entry.key = key_of(entry.message)
            entry.next = entry.last = None
            if entry.row is not None:
                entry.row = rows.get(entry.position) or entry.row.changed(key=entry.key)
            if entry.fate is not None:
                entry.fate = entry.fate.changed(key=entry.key)
            if entry.status in (STATUS_READY, STATUS_BLOCKED):
                entry.status = STATUS_BLOCKED
                waiting.append(entry)
            elif (
                entry.key is not None
                and entry.status in _BUSY_STATUSES
                and (entry.fate is None or self.holds_key(entry.fate))
            ):
                self.keys.strays.add(entry.position, entry.key)
                self.keys.unknown[entry.key] = None
        self._reorder_suspicious(key_of, rows)
        # So that a new message of a key which one of them holds is looked up.
        self.has_rows = self.has_rows or bool(self.keys.strays)
        for entry in waiting:
            if entry.key is None:
                self.make_ready(entry)
            elif self.keys.append(entry, entry.key):
                if self.has_rows:
                    self.keys.unknown[entry.key] = None
                else:
                    self.make_ready(entry)

    def _reorder_suspicious(self, key_of: Callable[[M], str | None], rows: Mapping[int, DeliveryRow]) -> None:
        """Look up messages that are to run alone and are not here yet."""
        for position, message in self.suspicious.items():
            if position in self.rows:
                continue
            if (key := key_of(message)) is not None:
                self.keys.unknown[key] = None
            elif (row := rows.get(position)) is not None and row.state is State.RUNNING:
                self.make_ready(self.load(LoadedRow(row, message)))

    def look_up_all(self) -> None:
        """Look every key up again before anything else of it runs."""
        for key, head in self.keys.heads.items():
            self.keys.unknown[key] = None
            if head.status == STATUS_READY:
                head.status = STATUS_BLOCKED

    def put_back(self, entry: LaneEntry[M]) -> None:
        """Take back an entry that was handed out and not tried."""
        key = entry.key
        if entry.row is not None and entry.row.state is State.SKIPPED:
            self.finish(entry)
            return
        if key is not None and self.keys.strays.drop(entry.position):
            self.keys.insert(entry, key)
        if key is not None and key in self.keys.stored and entry.row is None:
            self.keys.unknown[key] = None
        if key is not None and key in self.keys.unknown:
            # Something of its key comes before it, as was learned meanwhile.
            entry.status = STATUS_BLOCKED
        else:
            self.make_ready(entry)

    def recall(self, entry: LaneEntry[M]) -> None:
        """Take back an entry that was set aside: it gets no row after all."""
        del self.aside[entry.position]
        entry.fate = None
        self.make_ready(entry)

    def holds_key(self, row: DeliveryRow) -> bool:
        """Return True if a row keeps what follows of its key from running."""
        return row.state is not State.PARKED or self.settings.on_park == "block"

    def _free(self, entry: LaneEntry[M]) -> None:
        """Let the next entry of the key go on."""
        key = entry.key
        if key is None or self.keys.strays.drop(entry.position):
            # What a stray held is unknown: it is looked up.
            return
        following = self.keys.advance(entry, key)
        if key in self.keys.unknown:
            return
        if key in self.keys.stored and (following is None or following.row is None):
            self.keys.unknown[key] = None
        elif following is not None:
            self.make_ready(following)

    def _keep_skipped(self, entry: LaneEntry[M], row: DeliveryRow) -> None:
        """Drop an entry that a person skipped while it ran: its outcome changes nothing."""
        del self.rows[entry.position]
        self.bytes -= entry.size
        self.seen[row.position] = row

    # To the store

    def leave(self, entries: Iterable[LaneEntry[M]]) -> None:
        """Drop entries that are in the store alone from now on; what is left of their keys comes after them."""
        keys: dict[str, None] = {}
        for entry in entries:
            if entry.key is not None and (entry.fate is None or self.holds_key(entry.fate)):
                keys[entry.key] = None
            self.forget(entry)
        for key in keys:
            self.keys.rebuild(key, [])
            self.hold(key)

    def forget(self, entry: LaneEntry[M]) -> None:
        """Drop an entry: nothing of it is left here, and the chain of its key passes over it."""
        entry.status = STATUS_GONE
        position = entry.position
        self.keys.strays.drop(position)
        if self.window.entries.pop(position, None) or self.rows.pop(position, None):
            self.bytes -= entry.size
        self.aside.pop(position, None)
        self.finished.pop(position, None)

    def start(self, entry: LaneEntry[M], row: DeliveryRow) -> None:
        """Note that the row of an entry says now that it runs."""
        entry.guard = False
        self.suspicious.pop(entry.position, None)
        entry.row = row
        self.window.entries.pop(entry.position, None)
        self.rows[entry.position] = entry

    def lose(self, entry: LaneEntry[M]) -> None:
        """Drop an entry whose row a person changed before it could start: its key is looked up again."""
        self.forget(entry)
        if entry.key is not None:
            self.keys.rebuild(entry.key, [])
            self.keys.unknown[entry.key] = None

    # From the store

    def update(self, entry: LaneEntry[M], row: DeliveryRow) -> None:
        """Take over the row of an entry that a person changed."""
        if row.state is not State.SKIPPED or entry.status in (STATUS_OPEN, STATUS_GUARDED):
            entry.row = row
            if entry.fate is not None and entry.fate.state is State.UNROUTED:
                entry.fate = entry.fate.changed(attempts=row.attempts, total=row.total)
        elif entry.status != STATUS_GONE:
            self.suspicious.pop(row.position, None)
            self.forget(entry)
            self.seen[row.position] = row

    def load(self, loaded: LoadedRow[M]) -> LaneEntry[M]:
        """Make an entry of a stored row."""
        row = loaded.row
        runs = row.state is State.RUNNING
        suspect = is_suspect(row) or (runs and row.position in self.suspicious)
        started_before = self.on_probation and row.since <= self.begun
        # What runs by its row and came back needs no other row, unless that was another owner's.
        guard = row.position in self.suspicious if runs else started_before or suspect or self.settings.track_all
        size = loaded.message.size
        entry = LaneEntry(row.position, loaded.message, row.key, size, guard=guard, suspect=suspect, row=row)
        self.rows[row.position] = entry
        self.bytes += size
        return entry

    def is_busy(self, key: str) -> bool:
        """Return True if an entry of the key is handed out, or waits to be written."""
        head = self.keys.heads.get(key)
        return (head is not None and head.status in _BUSY_STATUSES) or self.keys.strays.hold(key)

    def take_back_unrouted(self, key: str) -> None:
        """Let the first entry of a key wait behind stored rows, if it is unrouted and not written yet."""
        head = self.keys.heads.get(key)
        if head is not None and head.status == STATUS_ASIDE and head.fate and head.fate.state is State.UNROUTED:
            del self.aside[head.position]
            head.fate = None
            head.status = STATUS_BLOCKED

    def hold(self, key: str) -> None:
        """Note that the key has stored rows that come before its entries here."""
        head = self.keys.heads.get(key)
        if head is None:
            self.keys.stored.pop(key, None)
            return
        self.keys.stored[key] = None
        if head.status == STATUS_READY and head.row is None:
            head.status = STATUS_BLOCKED

    def open_key(self, key: str) -> None:
        """Note that no stored row holds the key: its first entry may go on."""
        self.keys.stored.pop(key, None)
        head = self.keys.heads.get(key)
        if head is not None and head.status == STATUS_GONE:
            self.keys.rebuild(key, [])
            head = self.keys.heads.get(key)
        if head is not None and head.status == STATUS_BLOCKED:
            self.make_ready(head)

    def load_key(self, key: str, held: HeldKey[M], now: float) -> None:
        """Load the rows of a key that may run, before the entries of it that are here."""
        withdrawn = self._withdraw(key)
        rows = [loaded for loaded in held.rows if not self._is_settled(loaded.row.position)]
        runnable = list(takewhile(lambda loaded: self.may_run(loaded, now), rows))
        entries = [self.load(loaded) for loaded in runnable]
        self.keys.rebuild(key, entries)
        self.seen.update((row.position, row) for row in withdrawn if row.position not in self.rows)
        if entries:
            self.make_ready(entries[0])
        elif len(rows) < len(held.rows):
            # What is behind those that are settled here is known when that is written.
            self.keys.unknown[key] = None
        if held.more or len(runnable) < len(rows):
            self.hold(key)
        else:
            self.open_key(key)

    def _is_settled(self, position: int) -> bool:
        """Return True if a stored row is known to be outdated: it is done, or is about to be replaced."""
        return position in self.finished or position in self.aside

    def may_run(self, loaded: LoadedRow[M], now: float) -> bool:
        """Return True if a row that is the lowest of its key may run."""
        row = loaded.row
        if row.state is State.UNROUTED:
            return self._is_routed(loaded.message)
        if row.state is State.RETRYING:
            return row.due is None or row.due <= now
        return row.state is not State.PARKED

    def _withdraw(self, key: str) -> list[DeliveryRow]:
        """Stop the key until its rows are loaded again; return rows that say they run, and do not."""
        given_back: list[DeliveryRow] = []
        for entry in self.keys.chain(key):
            if entry.row is not None:
                if was_given_back(entry):
                    given_back.append(entry.row)
                self.forget(entry)
            elif entry.status == STATUS_READY:
                entry.status = STATUS_BLOCKED
        return given_back


def was_given_back(entry: LaneEntry[M]) -> bool:
    """Return True if the row of an entry says that it runs, though it was given back."""
    runs = entry.row is not None and entry.row.state is State.RUNNING and not entry.guard
    return runs and entry.status in (STATUS_READY, STATUS_BLOCKED)
