"""Who gets a message: matches what is ready with routes, and brings back what was unrouted."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Generic, TypeAlias

import msgspec

from milepost.dispatch.attempts import cleared, suspected
from milepost.dispatch.board import Board
from milepost.dispatch.delivery import READY, Entry, M, Row, State
from milepost.dispatch.exchange import Loaded
from milepost.dispatch.routes import EVERYTHING, Group, Member, Routes

Writing: TypeAlias = Callable[[], Collection[int]]


class Scan(msgspec.Struct, Generic[M], frozen=True):
    """A look at unrouted rows, in order, for groups that may have some there."""

    groups: dict[Group[M], int]
    """Up to where each of them knows its rows."""
    routes: frozenset[str] | None
    """The labels of rows to look at; None: all."""
    limit: int
    """The most rows to look at."""

    @property
    def after(self) -> int:
        return min(self.groups.values())


class Router(Generic[M]):
    """Between the board and the routes.

    A group that is new may find its messages among the unrouted rows, and so does one that had no room for
    them. Such a group is behind: it is given nothing beyond what a scan has seen (`Group.known_to`), so that its
    messages go out in order.
    """

    def __init__(self, board: Board[M], routes: Routes[M]) -> None:
        self._board = board
        self._routes = routes
        self._version = routes.version
        self._behind: dict[Group[M], frozenset[str] | None] = {}
        """Groups that may have rows in the store: those that name one of these routes; None: any."""
        self._known: dict[Group[M], None] = {}

    def take(self, now: float, writing: Writing) -> tuple[Entry[M], Member[M]] | None:
        """The next entry to hand out, and to whom. `writing` tells the positions of the exchange under way."""
        self._keep_up(writing)
        if not self._routes:
            return None
        # What came back, or a person retried, is among these, and goes before what is queued behind it.
        while (entry := self._board.ready.pop()) is not None:
            group = self._group_of(entry, now)
            if group is None:
                continue
            if (member := group.assign(entry)) is not None:
                return entry, member
            self._routes.push(group, entry)
        taken = self._routes.take()
        if taken is None and self._board.room() <= 0 and self._routes.share():
            # The window is full of what waits for members without room, while others have nothing to do.
            taken = self._routes.take()
        return taken

    def _group_of(self, entry: Entry[M], now: float) -> Group[M] | None:
        """Whose entry it is; nobody's is set aside."""
        group = self._routes.match(entry.message)
        if group is None:
            self._board.set_aside(entry, _unrouted(entry, now))
        return group

    def has_next(self, writing: Writing) -> bool:
        """Whether something could be handed out, if that were permitted."""
        self._keep_up(writing)
        board = self._board
        return bool(self._routes) and bool(board.ready or board.suspects or self._routes.has_next())

    def take_suspect(self, now: float, writing: Writing) -> tuple[Entry[M], Member[M]] | None:
        """A suspect and to whom it goes; one that cannot go at once is set aside, so that it holds up nobody."""
        self._keep_up(writing)
        entry = self._board.suspects.pop()
        if entry is None:
            return None
        group = self._routes.match(entry.message)
        member = group.assign(entry, first=True) if group else None
        if member is not None:
            return entry, member
        row = _unrouted(entry, now, group)
        if group is not None:
            self._fall_behind(group, entry.position - 1, frozenset([group.label]))
        # While others of its route have room it would come back at once, again and again: it is as any other then.
        self._board.set_aside(entry, cleared(row) if group and group.has_room else suspected(row))
        return None

    def relieve(self, now: float, allowance: int) -> None:
        """When the window is full of messages for routes without room, while others have nothing to do, the former
        get rows, so that they do not hold up the latter."""
        self._keep_up(_nothing)
        if not self._routes:
            return
        while (entry := self._board.ready.pop()) is not None:
            if (group := self._group_of(entry, now)) is not None:
                self._routes.push(group, entry)
        if self._board.room() > 0 or not self._routes.idle():
            return
        fates = [entry.fate for entry in self._board.aside.values()]
        allowance = max(0, allowance - sum(1 for fate in fates if fate and fate.state is State.UNROUTED))
        for group in self._routes.crowded():
            entries = group.clear()
            kept = max(0, len(entries) - allowance)
            for entry in entries[:kept]:
                self._routes.push(group, entry)
            for entry in entries[kept:]:
                self._fall_behind(group, entry.position - 1, frozenset([group.label]))
                self._board.set_aside(entry, _unrouted(entry, now, group))
            allowance = max(0, allowance - len(entries))

    def is_crowded(self) -> bool:
        """Whether `relieve` would find something in a full window."""
        return self._routes.idle() and bool(self._routes.crowded())

    def filters(self) -> tuple[str, ...]:
        """The filters of all routes, each once; `*` is everything."""
        texts = (group.filter.canonical if group.filter else "*" for group in self._routes.groups)
        return tuple(dict.fromkeys(texts))

    # Unrouted rows

    def scan(self) -> Scan[M] | None:
        """Which unrouted rows are to be looked at, for groups that are behind and could hand out more."""
        groups = {group: group.known_to for group in self._behind if group.free > 0}
        if not groups:
            return None
        routes = _together(self._behind[group] for group in groups)
        return Scan(groups, routes, EVERYTHING if routes is None else sum(group.free for group in groups))

    def scanned(self, scan: Scan[M], rows: Sequence[Loaded[M]], end: int | None) -> None:
        """What a scan found, in order; it went up to `end`, or through.

        A group gets as many as it has room for, and stays behind if there were more. With other routes than those
        that it was made for it says nothing: the groups look again.
        """
        if self._version != self._routes.version:
            return
        groups = {group: group.free for group, known_to in scan.groups.items() if group.known_to == known_to}
        full: dict[Group[M], int] = {}
        for loaded in rows:
            group = self._routes.match(loaded.message)
            position = loaded.row.position
            if group not in groups or group in full or position <= scan.groups[group]:
                continue
            if groups[group] <= 0:
                full[group] = position - 1
            else:
                groups[group] -= 1
                self._bring_back(loaded, group)
        for group in groups:
            self._caught_up(group, full.get(group, end))

    def _caught_up(self, group: Group[M], to: int | None) -> None:
        if to is None:
            group.known_to = EVERYTHING
            self._behind.pop(group, None)
        else:
            group.known_to = max(group.known_to, to)

    def _bring_back(self, loaded: Loaded[M], group: Group[M]) -> None:
        key = loaded.row.key
        if key is None:
            entry = self._board.load(loaded)
            if entry.suspect:
                self._board.make_ready(entry)
                return
            entry.place = READY
            self._routes.push(group, entry)
        elif self._board.is_busy(key):
            self._board.hold(key)
        else:
            self._board.keys.unknown[key] = None

    # Changes of routes

    def _keep_up(self, writing: Writing) -> None:
        """Matches again what was matched with other routes."""
        if self._version == self._routes.version:
            return
        self._version = self._routes.version
        for entry in self._routes.clear():
            self._board.make_ready(entry)
        under_way = writing()
        for position, entry in list(self._board.aside.items()):
            if entry.fate is not None and entry.fate.state is State.UNROUTED and position not in under_way:
                self._board.recall(entry)
        self._note_changes()

    def _note_changes(self) -> None:
        """Rows that waited for a group which is gone, or stands elsewhere, may be anyone's now. What waits for
        others may be that of a group which stands elsewhere, and what waits for nobody that of a new one."""
        moved, gone = self._routes.changes()
        waiting = dict(self._behind)
        loose = [group for group in (*moved, *gone) if group in waiting]
        for group in gone:
            self._behind.pop(group, None)
            self._known.pop(group, None)
        for group in self._routes.groups if loose else ():
            self._fall_behind(group, 0, _together(waiting[each] for each in loose))
        for group in moved:
            if group in self._known:
                if waiting:
                    self._fall_behind(group, 0, _together(waiting.values()))
            elif self._board.has_rows:
                self._fall_behind(group, 0, None)
            self._known[group] = None

    def reordered(self) -> None:
        """Messages get their keys anew: what is queued is matched again, unrouted rows are looked for again."""
        self._routes.clear()
        for group in self._routes.groups if self._board.has_rows else ():
            self._fall_behind(group, 0, None)

    def _fall_behind(self, group: Group[M], known_to: int, routes: frozenset[str] | None) -> None:
        group.known_to = min(group.known_to, known_to)
        self._behind[group] = _together([self._behind.get(group, frozenset()), routes])


def _together(named: Iterable[frozenset[str] | None]) -> frozenset[str] | None:
    """Rows that name one of all these routes; None: any row."""
    together: frozenset[str] = frozenset()
    for routes in named:
        if routes is None:
            return None
        together |= routes
    return together


def _nothing() -> Collection[int]:
    return ()


def _unrouted(entry: Entry[M], now: float, group: Group[M] | None = None) -> Row:
    row = entry.row or entry.as_row(State.UNROUTED, now)
    return row.changed(state=State.UNROUTED, since=now, due=None, route=group.label if group else None)
