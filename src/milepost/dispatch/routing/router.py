"""Match ready messages with routes, and bring back messages that no route had room for."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Generic, TypeAlias

import msgspec

from milepost.dispatch.delivery import STATUS_READY, DeliveryRow, LaneEntry, M, State
from milepost.dispatch.exchange import LoadedRow
from milepost.dispatch.lane_memory import LaneMemory
from milepost.dispatch.retry import cleared_row, suspected_row
from milepost.dispatch.routing.groups import RouteGroup
from milepost.dispatch.routing.route import RouteMember
from milepost.dispatch.routing.routes import Routes
from milepost.names import MAX_POSITION_NUMBER

PositionsInExchange: TypeAlias = Callable[[], Collection[int]]


class UnroutedScan(msgspec.Struct, Generic[M], frozen=True):
    """A search of the unrouted rows, in order of position, for groups that may have some there."""

    groups: dict[RouteGroup[M], int]
    """The groups, each with the position up to which it knows its rows."""
    routes: frozenset[str] | None
    """The labels of rows to look at; None: all."""
    limit: int
    """The most rows to look at."""

    @property
    def after(self) -> int:
        return min(self.groups.values())


class Router(Generic[M]):
    """Match the ready entries of a lane with its routes.

    A new group, or one that had no room, may find its messages among the unrouted rows. Such a group is behind:
    it gets nothing beyond the position that a scan has seen (`RouteGroup.known_to`), so that messages go out in
    order.
    """

    def __init__(self, lane_memory: LaneMemory[M], routes: Routes[M]) -> None:
        self._lane_memory = lane_memory
        self._routes = routes
        self._version = routes.version
        self._behind: dict[RouteGroup[M], frozenset[str] | None] = {}
        """Groups that may have rows in the store, with the labels of these rows; None: any label."""
        self._known: dict[RouteGroup[M], None] = {}

    def take(self, now: float, writing: PositionsInExchange) -> tuple[LaneEntry[M], RouteMember[M]] | None:
        """Take the next entry to hand out, with its member.

        `writing` returns the positions that the exchange under way changes.
        """
        self._keep_up(writing)
        if not self._routes:
            return None
        # Entries that came back, or that a person retried, are among these and go before later ones.
        while (entry := self._lane_memory.ready.pop()) is not None:
            group = self._group_of(entry, now)
            if group is None:
                continue
            if (member := group.assign(entry)) is not None:
                return entry, member
            self._routes.push(group, entry)
        taken = self._routes.take()
        if taken is None and self._lane_memory.room() <= 0 and self._routes.share():
            # The window is full of what waits for members without room, while others have nothing to do.
            taken = self._routes.take()
        return taken

    def _group_of(self, entry: LaneEntry[M], now: float) -> RouteGroup[M] | None:
        """Return the group of an entry; one without a group is set aside as unrouted."""
        group = self._routes.match(entry.message)
        if group is None:
            self._lane_memory.set_aside(entry, _unrouted_row(entry, now))
        return group

    def has_next(self, writing: PositionsInExchange) -> bool:
        """Return True if something could be handed out, were it permitted."""
        self._keep_up(writing)
        memory = self._lane_memory
        return bool(self._routes) and bool(memory.ready or memory.suspects or self._routes.has_next())

    def take_suspect(self, now: float, writing: PositionsInExchange) -> tuple[LaneEntry[M], RouteMember[M]] | None:
        """Take a suspect with its member. One that cannot go at once is set aside: it holds up no other."""
        self._keep_up(writing)
        entry = self._lane_memory.suspects.pop()
        if entry is None:
            return None
        group = self._routes.match(entry.message)
        member = group.assign(entry, first=True) if group else None
        if member is not None:
            return entry, member
        row = _unrouted_row(entry, now, group)
        if group is not None:
            self._fall_behind(group, entry.position - 1, frozenset([group.label]))
        # While others of its route have room it would come back at once, again and again: it is as any other then.
        self._lane_memory.set_aside(entry, cleared_row(row) if group and group.has_room else suspected_row(row))
        return None

    def relieve(self, now: float, allowance: int) -> None:
        """Give rows to messages of full groups if they fill the window while other groups are idle.

        At most `allowance` messages get rows.
        """
        self._keep_up(_no_positions)
        if not self._routes:
            return
        while (entry := self._lane_memory.ready.pop()) is not None:
            if (group := self._group_of(entry, now)) is not None:
                self._routes.push(group, entry)
        if self._lane_memory.room() > 0 or not self._routes.idle():
            return
        fates = [entry.fate for entry in self._lane_memory.aside.values()]
        allowance = max(0, allowance - sum(1 for fate in fates if fate and fate.state is State.UNROUTED))
        for group in self._routes.crowded():
            entries = group.clear()
            kept = max(0, len(entries) - allowance)
            for entry in entries[:kept]:
                self._routes.push(group, entry)
            for entry in entries[kept:]:
                self._fall_behind(group, entry.position - 1, frozenset([group.label]))
                self._lane_memory.set_aside(entry, _unrouted_row(entry, now, group))
            allowance = max(0, allowance - len(entries))

    def is_crowded(self) -> bool:
        """Return True if `relieve` would find something in a full window."""
        return self._routes.idle() and bool(self._routes.crowded())

    def filters(self) -> tuple[str, ...]:
        """Return the filters of all routes, each once; `*` is everything."""
        texts = (group.filter.canonical if group.filter else "*" for group in self._routes.groups)
        return tuple(dict.fromkeys(texts))

    # Unrouted rows

    def scan(self) -> UnroutedScan[M] | None:
        """Return the search of unrouted rows that groups need which are behind and could hand out more."""
        groups = {group: group.known_to for group in self._behind if group.free > 0}
        if not groups:
            return None
        routes = _joined_labels(self._behind[group] for group in groups)
        return UnroutedScan(
            groups, routes, MAX_POSITION_NUMBER if routes is None else sum(group.free for group in groups)
        )

    def scanned(self, scan: UnroutedScan[M], rows: Sequence[LoadedRow[M]], end: int | None) -> None:
        """Take over the rows that a scan found, in order. It went up to `end`; None: through.

        A group gets as many as it has room for, and stays behind if there were more. If routes have changed since
        the scan was made, its result is dropped: the groups scan again.
        """
        if self._version != self._routes.version:
            return
        groups = {group: group.free for group, known_to in scan.groups.items() if group.known_to == known_to}
        full: dict[RouteGroup[M], int] = {}
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

    def _caught_up(self, group: RouteGroup[M], to: int | None) -> None:
        if to is None:
            group.known_to = MAX_POSITION_NUMBER
            self._behind.pop(group, None)
        else:
            group.known_to = max(group.known_to, to)

    def _bring_back(self, loaded: LoadedRow[M], group: RouteGroup[M]) -> None:
        key = loaded.row.key
        if key is None:
            entry = self._lane_memory.load(loaded)
            if entry.suspect:
                self._lane_memory.make_ready(entry)
                return
            entry.status = STATUS_READY
            self._routes.push(group, entry)
        elif self._lane_memory.is_busy(key):
            self._lane_memory.hold(key)
        else:
            self._lane_memory.keys.unknown[key] = None

    # Changes of routes

    def _keep_up(self, writing: PositionsInExchange) -> None:
        """Match entries again that were matched with other routes."""
        if self._version == self._routes.version:
            return
        self._version = self._routes.version
        for entry in self._routes.clear():
            self._lane_memory.make_ready(entry)
        under_way = writing()
        for position, entry in list(self._lane_memory.aside.items()):
            if entry.fate is not None and entry.fate.state is State.UNROUTED and position not in under_way:
                self._lane_memory.recall(entry)
        self._note_changes()

    def _note_changes(self) -> None:
        """Let groups fall behind that may have rows in the store after a change of routes.

        Rows that waited for a group that is gone, or has another rank, may belong to any group now. Rows that wait
        for others may belong to a group with another rank, and rows that wait for none to a new one.
        """
        moved, gone = self._routes.changes()
        waiting = dict(self._behind)
        loose = [group for group in (*moved, *gone) if group in waiting]
        for group in gone:
            self._behind.pop(group, None)
            self._known.pop(group, None)
        for group in self._routes.groups if loose else ():
            self._fall_behind(group, 0, _joined_labels(waiting[each] for each in loose))
        for group in moved:
            if group in self._known:
                if waiting:
                    self._fall_behind(group, 0, _joined_labels(waiting.values()))
            elif self._lane_memory.has_rows:
                self._fall_behind(group, 0, None)
            self._known[group] = None

    def reordered(self) -> None:
        """Match queued entries and search unrouted rows again: messages get their keys anew."""
        self._routes.clear()
        for group in self._routes.groups if self._lane_memory.has_rows else ():
            self._fall_behind(group, 0, None)

    def _fall_behind(self, group: RouteGroup[M], known_to: int, routes: frozenset[str] | None) -> None:
        group.known_to = min(group.known_to, known_to)
        self._behind[group] = _joined_labels([self._behind.get(group, frozenset()), routes])


def _joined_labels(named: Iterable[frozenset[str] | None]) -> frozenset[str] | None:
    """Return the labels of all; None, any label, if one of them is None."""
    together: frozenset[str] = frozenset()
    for routes in named:
        if routes is None:
            return None
        together |= routes
    return together


def _no_positions() -> Collection[int]:
    return ()


def _unrouted_row(entry: LaneEntry[M], now: float, group: RouteGroup[M] | None = None) -> DeliveryRow:
    row = entry.row or entry.as_row(State.UNROUTED, now)
    return row.changed(state=State.UNROUTED, since=now, due=None, route=group.label if group else None)
