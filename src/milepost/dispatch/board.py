"""What a lane has in memory, and how entries move from place to place."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat, takewhile
from operator import attrgetter
from typing import Generic

from milepost.dispatch.attempts import is_suspect
from milepost.dispatch.delivery import ASIDE, BLOCKED, GONE, GUARDED, OPEN, READY, Delivery, Entry, M, Row, State
from milepost.dispatch.exchange import HeldKey, LaneState, Loaded
from milepost.dispatch.keys import Keys
from milepost.dispatch.queue import Queue
from milepost.dispatch.settings import Settings
from milepost.dispatch.window import Window
from milepost.ranges import Ranges

_BUSY = (OPEN, GUARDED, ASIDE)
_position = attrgetter("position")


class Board(Generic[M]):
    """The entries of a lane.

    A message of the log is in `window.entries` until it is settled or has a row. One with a row that was loaded,
    or that it got before it started, is in `rows`. An entry that has to get a row, or another one, is in `aside`
    as well, one with a row that is done in `finished`, until that is written.
    """

    def __init__(self, settings: Settings, state: LaneState[M], is_routed: Callable[[M], bool]) -> None:
        self.settings = settings
        self._is_routed = is_routed
        self.window: Window[M] = Window(state.cursor)
        self.keys: Keys[M] = Keys()
        self.ready: Queue[M] = Queue()
        self.suspects: Queue[M] = Queue()
        self.rows: dict[int, Entry[M]] = {}
        self.aside: dict[int, Entry[M]] = {}
        self.finished: dict[int, Entry[M]] = {}
        self.seen: dict[int, Row] = {}
        """Rows that were due or ran, and are not to: a person skipped them, or their key has an earlier one."""
        self.guards: dict[int, Delivery[M]] = {}
        """Deliveries that are handed out as soon as their rows say that they run."""
        self.suspicious: dict[int, M] = {}
        """Messages whose rows said `running` when a process vanished, and do not say yet that they run alone."""
        self.bytes = 0
        self.lent = 0
        self.lent_bytes = 0
        """What consumers have: their capacities bound it, not the window."""
        self.touched = state.cursor.position
        """The highest position of those that went to a consumer, or got a row."""
        self.has_rows = state.rows
        self.begun = state.now
        """Rows that came into their state before this may have been started by an owner that vanished."""
        self.on_probation = state.unclean
        self.guards_left = settings.probation if state.unclean else 0

    def room(self) -> int:
        """How many messages may be taken."""
        if self.room_bytes() <= 0:
            return 0
        return self.settings.window - len(self.window.entries) - len(self.rows) + self.lent

    def room_bytes(self) -> int:
        """How many bytes of them."""
        return self.settings.window_bytes - self.bytes + self.lent_bytes

    def is_half_free(self) -> bool:
        """Whether at least half of the window is free."""
        settings = self.settings
        return 2 * self.room() >= settings.window and 2 * self.room_bytes() >= settings.window_bytes

    def rows_here(self) -> int:
        """How many rows are in memory that no consumer has."""
        if not self.lent:
            return len(self.rows)
        return sum(1 for entry in self.rows.values() if not (entry.delivery and entry.delivery.member))

    def lend(self, entry: Entry[M]) -> None:
        """A consumer has it."""
        self.lent += 1
        self.lent_bytes += entry.size

    def returned(self, entry: Entry[M]) -> None:
        """The consumer no longer has it."""
        self.lent -= 1
        self.lent_bytes -= entry.size

    # From the log

    def take_all(self, messages: Sequence[M], keys: Sequence[str] | None, room: int) -> int | None:
        """New messages, in order, as far as there is room: the position of the first that has none.

        What every message goes through, so nothing is called that need not be.
        """
        window, heads = self.window, self.keys.heads
        entries, reach, some_done = window.entries, window.reach, window.some_done
        guards, has_rows = bool(self.guards_left or self.settings.track_all), self.has_rows
        room_bytes = self.room_bytes()
        ready: list[Entry[M]] = []
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
            entry = Entry(position, message, key, size)
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
            entry.place = READY
            ready.append(entry)
        self.bytes += volume
        self.ready.push_all(ready)
        return full_at

    def _guard(self, entry: Entry[M]) -> bool:
        """Its row says first that it runs; whether that holds for the next one too."""
        entry.guard = True
        self.guards_left = max(0, self.guards_left - 1)
        return bool(self.guards_left or self.settings.track_all)

    def unread(self, after: int, done: Ranges) -> None:
        """Forgets what was taken above a position, of which nobody has had anything."""
        above = [entry for position, entry in self.window.entries.items() if position > after]
        for entry in above:
            self.guards_left += entry.guard
            self.forget(entry)
        for key in {entry.key for entry in above if entry.key is not None}:
            self.keys.rebuild(key, [])
            if key not in self.keys.heads:
                self.keys.stored.pop(key, None)
        self.window.rewind(after, done)

    def make_ready(self, entry: Entry[M]) -> None:
        entry.place = READY
        (self.suspects if entry.suspect else self.ready).push(entry)

    # Settled

    def finish(self, entry: Entry[M]) -> None:
        """It is done."""
        entry.place = GONE
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

    def finish_all(self, entries: Iterable[Entry[M]]) -> None:
        """They are done. What every healthy message goes through, so nothing is called that need not be."""
        of_window, keys = self.window.entries, self.keys
        heads, unknown, stored, strays = keys.heads, keys.unknown, keys.stored, keys.strays
        freed: list[Entry[M]] = []
        volume = 0
        for entry in entries:
            if entry.row is not None or entry.suspect or (strays and entry.position in strays):
                self.finish(entry)
                continue
            entry.place = GONE
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
            elif following.place != BLOCKED or following.suspect:
                self._free(entry)
            else:
                heads[key] = following
                if following is not entry.last:
                    following.last = entry.last
                entry.next = entry.last = None
                following.place = READY
                freed.append(following)
        self.bytes -= volume
        if freed:
            freed.sort(key=_position)
            self.ready.push_all(freed)

    def set_aside(self, entry: Entry[M], fate: Row) -> None:
        """It gets a row, or another one, with the next write."""
        if entry.row is not None and entry.row.state is State.SKIPPED:
            self.finish(entry)
            return
        entry.place = ASIDE
        entry.fate = fate
        self.aside[entry.position] = entry
        self.touched = max(self.touched, entry.position)
        if not self.holds_key(fate):
            self._free(entry)

    def reorder(self, settings: Settings, key_of: Callable[[M], str | None], rows: Mapping[int, Row]) -> None:
        """Everything gets its key anew. `rows` has what is stored by now of the rows that are here.

        What is out, or waits to be written, stays so, and holds its new key: several of one key may be out.
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
        waiting: list[Entry[M]] = []
        for entry in sorted([*self.window.entries.values(), *self.rows.values()]):
            entry.key = key_of(entry.message)
            entry.next = entry.last = None
            if entry.row is not None:
                entry.row = rows.get(entry.position) or entry.row.changed(key=entry.key)
            if entry.fate is not None:
                entry.fate = entry.fate.changed(key=entry.key)
            if entry.place in (READY, BLOCKED):
                entry.place = BLOCKED
                waiting.append(entry)
            elif (
                entry.key is not None
                and entry.place in _BUSY
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

    def _reorder_suspicious(self, key_of: Callable[[M], str | None], rows: Mapping[int, Row]) -> None:
        """What is to run alone and is not here yet is looked up."""
        for position, message in self.suspicious.items():
            if position in self.rows:
                continue
            if (key := key_of(message)) is not None:
                self.keys.unknown[key] = None
            elif (row := rows.get(position)) is not None and row.state is State.RUNNING:
                self.make_ready(self.load(Loaded(row, message)))

    def look_up_all(self) -> None:
        """Every key is looked up again before anything else of it runs."""
        for key, head in self.keys.heads.items():
            self.keys.unknown[key] = None
            if head.place == READY:
                head.place = BLOCKED

    def put_back(self, entry: Entry[M]) -> None:
        """It was handed out and not tried."""
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
            entry.place = BLOCKED
        else:
            self.make_ready(entry)

    def recall(self, entry: Entry[M]) -> None:
        """It gets no row after all."""
        del self.aside[entry.position]
        entry.fate = None
        self.make_ready(entry)

    def holds_key(self, row: Row) -> bool:
        return row.state is not State.PARKED or self.settings.on_park == "block"

    def _free(self, entry: Entry[M]) -> None:
        """Lets the next of the key go on."""
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

    def _keep_skipped(self, entry: Entry[M], row: Row) -> None:
        """A person skipped it while it ran: what it came to changes nothing."""
        del self.rows[entry.position]
        self.bytes -= entry.size
        self.seen[row.position] = row

    # To the store

    def leave(self, entries: Iterable[Entry[M]]) -> None:
        """These are in the store alone from now on; what is left here of their keys comes after them."""
        keys: dict[str, None] = {}
        for entry in entries:
            if entry.key is not None and (entry.fate is None or self.holds_key(entry.fate)):
                keys[entry.key] = None
            self.forget(entry)
        for key in keys:
            self.keys.rebuild(key, [])
            self.hold(key)

    def forget(self, entry: Entry[M]) -> None:
        """Nothing of it is left here."""
        entry.place = GONE
        position = entry.position
        self.keys.strays.drop(position)
        if self.window.entries.pop(position, None) or self.rows.pop(position, None):
            self.bytes -= entry.size
        self.aside.pop(position, None)
        self.finished.pop(position, None)

    def start(self, entry: Entry[M], row: Row) -> None:
        """Its row says now that it runs."""
        entry.guard = False
        self.suspicious.pop(entry.position, None)
        entry.row = row
        self.window.entries.pop(entry.position, None)
        self.rows[entry.position] = entry

    def lose(self, entry: Entry[M]) -> None:
        """Its row was changed by a person before it could start: what it says now is looked up."""
        self.forget(entry)
        if entry.key is not None:
            self.keys.rebuild(entry.key, [])
            self.keys.unknown[entry.key] = None

    # From the store

    def update(self, entry: Entry[M], row: Row) -> None:
        """A person changed the row of an entry that is here."""
        if row.state is not State.SKIPPED or entry.place in (OPEN, GUARDED):
            entry.row = row
            if entry.fate is not None and entry.fate.state is State.UNROUTED:
                entry.fate = entry.fate.changed(attempts=row.attempts, total=row.total)
        elif entry.place != GONE:
            self.suspicious.pop(row.position, None)
            self.forget(entry)
            self.seen[row.position] = row

    def load(self, loaded: Loaded[M]) -> Entry[M]:
        """A row comes back into memory."""
        row = loaded.row
        runs = row.state is State.RUNNING
        suspect = is_suspect(row) or (runs and row.position in self.suspicious)
        started_before = self.on_probation and row.since <= self.begun
        # What runs by its row and came back needs no other row, unless that was another owner's.
        guard = row.position in self.suspicious if runs else started_before or suspect or self.settings.track_all
        size = loaded.message.size
        entry = Entry(row.position, loaded.message, row.key, size, guard=guard, suspect=suspect, row=row)
        self.rows[row.position] = entry
        self.bytes += size
        return entry

    def is_busy(self, key: str) -> bool:
        """Whether something of the key has been handed out here, or waits to be written."""
        head = self.keys.heads.get(key)
        return (head is not None and head.place in _BUSY) or self.keys.strays.hold(key)

    def take_back_unrouted(self, key: str) -> None:
        """The first of a key that found no taker, and has no row yet, waits behind rows of its key."""
        head = self.keys.heads.get(key)
        if head is not None and head.place == ASIDE and head.fate and head.fate.state is State.UNROUTED:
            del self.aside[head.position]
            head.fate = None
            head.place = BLOCKED

    def hold(self, key: str) -> None:
        """The key has rows that come before what follows here."""
        head = self.keys.heads.get(key)
        if head is None:
            self.keys.stored.pop(key, None)
            return
        self.keys.stored[key] = None
        if head.place == READY and head.row is None:
            head.place = BLOCKED

    def open_key(self, key: str) -> None:
        """Nothing stored holds the key."""
        self.keys.stored.pop(key, None)
        head = self.keys.heads.get(key)
        if head is not None and head.place == GONE:
            self.keys.rebuild(key, [])
            head = self.keys.heads.get(key)
        if head is not None and head.place == BLOCKED:
            self.make_ready(head)

    def load_key(self, key: str, held: HeldKey[M], now: float) -> None:
        """The key's rows that may run go before what is here of it."""
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
        """Whether what is stored of a row is known to be outdated: it is done, or gets another one."""
        return position in self.finished or position in self.aside

    def may_run(self, loaded: Loaded[M], now: float) -> bool:
        """Whether a row that is its key's lowest may run."""
        row = loaded.row
        if row.state is State.UNROUTED:
            return self._is_routed(loaded.message)
        if row.state is State.RETRYING:
            return row.due is None or row.due <= now
        return row.state is not State.PARKED

    def _withdraw(self, key: str) -> list[Row]:
        """Nothing of the key runs until its rows are loaded again; those that say they run, and do not."""
        given_back: list[Row] = []
        for entry in self.keys.chain(key):
            if entry.row is not None:
                if was_given_back(entry):
                    given_back.append(entry.row)
                self.forget(entry)
            elif entry.place == READY:
                entry.place = BLOCKED
        return given_back


def was_given_back(entry: Entry[M]) -> bool:
    """Whether its row says that it runs, though it was given back."""
    runs = entry.row is not None and entry.row.state is State.RUNNING and not entry.guard
    return runs and entry.place in (READY, BLOCKED)
