"""Each bucket of messages to one member, for as long as that stays."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from operator import attrgetter

from milepost.dispatch.buckets import Buckets
from milepost.dispatch.delivery import Delivery, Entry, M
from milepost.dispatch.group import Group
from milepost.dispatch.member import Member
from milepost.dispatch.queue import Queue
from milepost.filter import Filter


class Pinned(Group[M]):
    """Entries go to the owner of their bucket; those of a full owner wait, and the others go on.

    A member that is doubted owns nothing by right: what it had goes to others, and while it has room it is given
    the buckets of the next entries, one by one, to show what it manages.
    """

    __slots__ = (
        "_bucket_of",
        "_doubted",
        "_heads",
        "_latest",
        "_numbers",
        "_open",
        "_roomy",
        "_waiting",
        "buckets",
    )

    def __init__(
        self, filter: Filter | None, priority: int, ready: deque[Group[M]], bucket_of: Callable[[M], int]
    ) -> None:
        super().__init__(filter, priority, ready)
        self.buckets: Buckets[M] = Buckets()
        self._bucket_of = bucket_of
        self._open: dict[Delivery[M], int] = {}
        self._roomy = 0
        self._doubted: dict[Member[M], None] = {}
        # Entries that came up while their owner was full; the others are in the group's queue.
        self._waiting: dict[Member[M], Queue[M]] = {}
        # The first waiting entry of each owner that has room again: a heap of position, number and owner.
        # Of an owner's items only that with the latest number counts.
        self._heads: list[tuple[int, int, Member[M]]] = []
        self._numbers = count()
        self._latest: dict[Member[M], int] = {}

    @property
    def has_room(self) -> bool:
        return self._roomy > 0

    @property
    def has_queued(self) -> bool:
        return bool(self._queue) or any(self._waiting.values())

    @property
    def has_next(self) -> bool:
        return self._next() is not None

    def take(self) -> tuple[Entry[M], Member[M]] | None:
        found = self._next()
        if found is None:
            return None
        entry, member, queue = found
        queue.pop()
        return entry, member

    def assign(self, entry: Entry[M], *, first: bool = False) -> Member[M] | None:
        if not self._roomy or (not first and (self._queue or entry.position > self._known_to)):
            return None
        owner = self._owner_of(entry)
        return None if owner.full or (not first and self._waiting[owner]) else owner

    def _at_hand(self) -> int:
        return super()._at_hand() + sum(map(len, self._waiting.values()))

    def clear(self) -> list[Entry[M]]:
        entries = super().clear()
        for waiting in self._waiting.values():
            entries += waiting.clear()
        return sorted(dict.fromkeys(entries), key=attrgetter("position"))

    def add(self, member: Member[M]) -> None:
        self._waiting[member] = Queue()
        super().add(member)
        self._share_with(member)
        for doubted in self._doubted:
            self._give_up(doubted)

    def remove(self, member: Member[M]) -> None:
        super().remove(member)
        self._doubted.pop(member, None)
        self._give_up(member)
        del self._waiting[member]
        self._latest.pop(member, None)
        for delivery in member.consumer.deliveries:
            if delivery.member is member:
                self.closed(delivery)

    def reorder(self) -> None:
        super().reorder()
        self.buckets.count(self._owners())

    def doubt(self, member: Member[M]) -> None:
        self._doubted[member] = None
        self._give_up(member)

    def trust(self, member: Member[M]) -> None:
        if member in self._doubted:
            del self._doubted[member]
            self._give_up(member)
            self._share_with(member)

    def share(self) -> bool:
        takers = [member for member in self.members if not member.full]
        room = sum(member.route.capacity - member.messages for member in takers)
        before = room
        for member in self.members:
            if room > 0 and member.full:
                room -= self._hand_over(member, takers, room)
        return room < before

    def gained_room(self, member: Member[M]) -> None:
        self._roomy += 1
        self._show_head(member)
        self.wake()

    def lost_room(self, member: Member[M]) -> None:
        self._roomy -= 1

    def opened(self, delivery: Delivery[M]) -> None:
        bucket = self._bucket_of(delivery.message)
        self._open[delivery] = bucket
        self.buckets.opened(bucket)

    def closed(self, delivery: Delivery[M]) -> None:
        # One that its member brought along from another group is not counted here.
        bucket = self._open.pop(delivery, None)
        if bucket is not None:
            self.buckets.closed(bucket)

    def _owners(self) -> list[Member[M]]:
        """Who may own buckets: those whom nobody doubts, or all if there is no such member."""
        return [member for member in self.members if member not in self._doubted] or self.members

    def _owner_of(self, entry: Entry[M]) -> Member[M]:
        bucket = self._bucket_of(entry.message)
        owner = self.buckets.owner_of(bucket)
        if self._doubted and owner not in self._doubted:
            for doubted in self._doubted:
                if not doubted.full:
                    self.buckets.move([bucket], doubted, self._owners())
                    return doubted
        return owner

    def _share_with(self, member: Member[M]) -> None:
        for loser in self.buckets.share_with(member, self._owners()):
            self._queue_anew(loser)

    def _give_up(self, member: Member[M]) -> None:
        """Leaves what one owns to others, as its next messages come."""
        self.buckets.release(member, self._owners())
        self._queue_anew(member)

    def _hand_over(self, member: Member[M], takers: Sequence[Member[M]], most: int) -> int:
        """Gives others buckets that wait for one, with about so many entries; returns how many these are."""
        waiting = Counter(
            self._bucket_of(entry.message)
            for entry in self._waiting[member].all()
            if entry.position <= self._known_to
        )
        moved, handed_over = 0, []
        for bucket in sorted(waiting, key=lambda bucket: (self.buckets.in_flight.get(bucket, 0), bucket)):
            if moved >= most:
                break
            handed_over.append(bucket)
            moved += waiting[bucket]
        for number, bucket in enumerate(handed_over):
            self.buckets.move([bucket], takers[number % len(takers)], self._owners())
        if moved:
            self._queue_anew(member)
        return moved

    def _next(self) -> tuple[Entry[M], Member[M], Queue[M]] | None:
        """The entry to hand out, to whom, and the queue that it is the first of."""
        if not self._roomy:
            return None
        waiting = self._first_waiting() if self._heads else None
        while (entry := self._queue.first()) is not None:
            if entry.position > self._known_to or (waiting and waiting[0].position < entry.position):
                break
            owner = self._owner_of(entry)
            if not owner.full:
                return entry, owner, self._queue
            self._queue.pop()
            self._waiting[owner].push(entry)
        return waiting if waiting and waiting[0].position <= self._known_to else None

    def _first_waiting(self) -> tuple[Entry[M], Member[M], Queue[M]] | None:
        """The same, of those that waited and whose owner has room again."""
        while self._heads:
            position, number, member = self._heads[0]
            if self._latest.get(member) != number or member.full:
                heappop(self._heads)
                continue
            entry = self._waiting[member].first()
            if entry is not None and entry.position == position:
                return entry, member, self._waiting[member]
            # That one was taken or withdrawn.
            heappop(self._heads)
            self._show_head(member)
        return None

    def _show_head(self, member: Member[M]) -> None:
        entry = self._waiting[member].first()
        if entry is not None:
            self._latest[member] = number = next(self._numbers)
            heappush(self._heads, (entry.position, number, member))

    def _queue_anew(self, member: Member[M]) -> None:
        """Lets what waits for one come up again, since buckets of its changed hands."""
        for entry in self._waiting[member].clear():
            self._queue.push(entry)
        self.wake()
