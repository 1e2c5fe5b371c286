"""Each bucket of messages to one member, for as long as that stays and keeps up."""

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

    A member that is doubted owns nothing, unless all are. While it has room it is lent entries that nobody has
    tried, in turn with the others, so that it can show what it manages.
    """

    __slots__ = (
        "_bucket_of",
        "_doubted",
        "_given",
        "_heads",
        "_latest",
        "_lendable",
        "_numbers",
        "_open",
        "_roomy",
        "_uneven",
        "_waiting",
        "buckets",
    )

    def __init__(
        self,
        filter: Filter | None,
        priority: int,
        ready: deque[Group[M]],
        bucket_of: Callable[[M], int],
        uneven: "dict[Group[M], None]",
    ) -> None:
        """`uneven` is where it puts itself when entries wait for one, and others may have room."""
        super().__init__(filter, priority, ready)
        self.buckets: Buckets[M] = Buckets()
        self._bucket_of = bucket_of
        self._uneven = uneven
        self._open: dict[Delivery[M], int] = {}
        self._roomy: dict[Member[M], None] = {}
        # Those that are doubted, with what `_given` was when they last got one.
        self._doubted: dict[Member[M], int] = {}
        self._lendable: dict[Member[M], None] = {}
        self._given = 0
        # Entries that came up while their owner was full; the others are in the group's queue.
        self._waiting: dict[Member[M], Queue[M]] = {}
        # The first waiting entry of each owner that has room again: a heap of position, number and owner.
        # Of an owner's items only that with the latest number counts.
        self._heads: list[tuple[int, int, Member[M]]] = []
        self._numbers = count()
        self._latest: dict[Member[M], int] = {}

    @property
    def has_room(self) -> bool:
        return bool(self._roomy)

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
        member = self._member_for(entry)
        return None if member.full or (not first and self._waiting[member]) else member

    def _at_hand(self) -> int:
        return super()._at_hand() + sum(map(len, self._waiting.values()))

    def clear(self) -> list[Entry[M]]:
        entries = super().clear()
        for waiting in self._waiting.values():
            entries += waiting.clear()
        return sorted(dict.fromkeys(entries), key=attrgetter("position"))

    # Members

    def add(self, member: Member[M]) -> None:
        self._waiting[member] = Queue()
        super().add(member)
        if member.consumer.doubted:
            self.doubt(member)
        else:
            self._share_with(member)

    def remove(self, member: Member[M]) -> None:
        super().remove(member)
        self._doubted.pop(member, None)
        self._give_up([member])
        del self._waiting[member]
        self._latest.pop(member, None)
        for delivery in member.consumer.deliveries:
            if delivery.member is member:
                self.closed(delivery)

    def reorder(self) -> None:
        super().reorder()
        self.buckets.count(self._owners())

    def gained_room(self, member: Member[M]) -> None:
        if not self._roomy and len(self.members) > 1:
            self._uneven[self] = None
        self._roomy[member] = None
        if member in self._doubted:
            self._lendable[member] = None
        self._show_head(member)
        self.wake()

    def lost_room(self, member: Member[M]) -> None:
        del self._roomy[member]
        self._lendable.pop(member, None)
        if not self._roomy:
            self._uneven.pop(self, None)

    def opened(self, delivery: Delivery[M]) -> None:
        bucket = self._bucket_of(delivery.message)
        self._open[delivery] = bucket
        self.buckets.opened(bucket)
        if delivery.member in self._doubted:
            self._doubted[delivery.member] = self._given
        else:
            self._given += 1

    def closed(self, delivery: Delivery[M]) -> None:
        # One that its member brought along from another group is not counted here.
        bucket = self._open.pop(delivery, None)
        if bucket is not None:
            self.buckets.closed(bucket)

    # Those who do not keep up

    def doubt(self, member: Member[M]) -> None:
        self._doubted[member] = self._given
        if not member.full:
            self._lendable[member] = None
        self._give_up([member])

    def trust(self, member: Member[M]) -> None:
        if self._doubted.pop(member, None) is not None:
            self._lendable.pop(member, None)
            self._share_with(member)

    def share(self) -> bool:
        takers = [member for member in self._roomy if member not in self._doubted]
        room = left = sum(member.route.capacity - member.messages for member in takers)
        waited_for = [member for member, waiting in self._waiting.items() if member.full and waiting]
        for member in waited_for:
            if left > 0:
                left -= self._hand_over(member, takers, left)
        if not waited_for:
            self._uneven.pop(self, None)
        if room or not waited_for or not self._lendable:
            return left < room
        # Only those that are doubted have room: it is their turn again.
        self._given += 1
        for member in waited_for:
            self._queue_anew(member)
        return True

    def _owners(self) -> list[Member[M]]:
        """Who may own buckets: those whom nobody doubts, or all if there is no such member."""
        return [member for member in self.members if member not in self._doubted] or self.members

    def _member_for(self, entry: Entry[M]) -> Member[M]:
        """The owner of its bucket, or one whom it is lent to."""
        if self._lendable and not entry.attempts and not entry.suspect:
            for member in self._lendable:
                # After one of the others, so that nothing comes back to whom it was taken from.
                if self._doubted[member] < self._given:
                    return member
        return self.buckets.owner_of(self._bucket_of(entry.message))

    def _share_with(self, member: Member[M]) -> None:
        """Gives one that comes, or is trusted again, its share; those that are doubted need not have any now."""
        if self._doubted:
            self._give_up(list(self._doubted))
        for loser in self.buckets.share_with(member, self._owners()):
            self._queue_anew(loser)

    def _give_up(self, members: Sequence[Member[M]]) -> None:
        """Leaves what these own to others, as its next messages come."""
        self.buckets.release(members, self._owners())
        for member in members:
            self._queue_anew(member)

    def _hand_over(self, member: Member[M], takers: Sequence[Member[M]], most: int) -> int:
        """Gives others, in turn, buckets of what waits for one, until that is so many; returns how many it is."""
        waiting = Counter(
            self._bucket_of(entry.message)
            for entry in self._waiting[member].all()
            if entry.position <= self._known_to
        )
        in_flight = self.buckets.in_flight
        moved = 0
        for number, bucket in enumerate(sorted(waiting, key=lambda bucket: (in_flight.get(bucket, 0), bucket))):
            if moved >= most:
                break
            self.buckets.move(bucket, takers[number % len(takers)])
            moved += waiting[bucket]
        if moved:
            self._queue_anew(member)
        return moved

    # What comes next

    def _next(self) -> tuple[Entry[M], Member[M], Queue[M]] | None:
        """The entry to hand out, to whom, and the queue that it is the first of."""
        if not self._roomy:
            return None
        waiting = self._first_waiting() if self._heads else None
        while (entry := self._queue.first()) is not None:
            if entry.position > self._known_to or (waiting and waiting[0].position < entry.position):
                break
            member = self._member_for(entry)
            if not member.full:
                return entry, member, self._queue
            self._queue.pop()
            self._waiting[member].push(entry)
            if len(self.members) > 1:
                self._uneven[self] = None
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
