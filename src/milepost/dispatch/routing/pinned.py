"""The pinned strategies: each of 1,024 buckets of messages belongs to one member."""

from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from operator import attrgetter
from typing import Generic

from milepost.dispatch.delivery import LaneDelivery, LaneEntry, M
from milepost.dispatch.queue import Queue
from milepost.dispatch.routing.groups import RouteGroup
from milepost.dispatch.routing.route import RouteMember
from milepost.filter import Filter


class BucketOwners(Generic[M]):
    """The owners of buckets, and the number of messages of each bucket in flight."""

    __slots__ = ("_fewest", "_is_counted", "_members", "in_flight", "owners")

    def __init__(self) -> None:
        # Only what is in use: there may be ten thousand groups.
        self.owners: dict[int, RouteMember[M]] = {}
        self.in_flight: dict[int, int] = {}
        self._members: Sequence[RouteMember[M]] = ()
        # How many buckets each member has, with its rank: a heap.
        self._fewest: list[tuple[int, int, int, RouteMember[M]]] = []
        self._is_counted = True

    def owner_of(self, bucket: int) -> RouteMember[M]:
        """Return the owner of a bucket. One without goes to the member with the fewest, of equals to the first."""
        owner = self.owners.get(bucket)
        if owner is None:
            if not self._is_counted:
                self.count(self._members)
            owned, arrival, number, owner = self._fewest[0]
            heapreplace(self._fewest, (owned + 1, arrival, number, owner))
            self.owners[bucket] = owner
        return owner

    def share_with(self, newcomer: RouteMember[M], members: Sequence[RouteMember[M]]) -> list[RouteMember[M]]:
        """Give a newcomer among these members its share; return the members that lost buckets.

        It takes from members above the average until it has the average: the buckets with the least in flight.
        """
        owned = Counter(self.owners.values())
        average = len(self.owners) // len(members)
        losers: dict[RouteMember[M], None] = {}
        for bucket in sorted(self.owners, key=lambda bucket: (self.in_flight.get(bucket, 0), bucket)):
            if owned[newcomer] == average:
                break
            owner = self.owners[bucket]
            if owned[owner] > average:
                self.owners[bucket] = newcomer
                owned[owner] -= 1
                owned[newcomer] += 1
                losers[owner] = None
        self.count(members)
        return list(losers)

    def release(self, leavers: Collection[RouteMember[M]], members: Sequence[RouteMember[M]]) -> None:
        """Take their buckets from `leavers`; `members` get them as entries come."""
        self.owners = {bucket: owner for bucket, owner in self.owners.items() if owner not in leavers}
        self.count(members)

    def move(self, bucket: int, owner: RouteMember[M]) -> None:
        """Give a bucket to a member."""
        self.owners[bucket] = owner
        self._is_counted = False

    def opened(self, bucket: int) -> None:
        """Count one more message of a bucket in flight."""
        self.in_flight[bucket] = self.in_flight.get(bucket, 0) + 1

    def closed(self, bucket: int) -> None:
        """Count one message of a bucket less in flight."""
        others = self.in_flight.pop(bucket) - 1
        if others:
            self.in_flight[bucket] = others

    def count(self, members: Sequence[RouteMember[M]]) -> None:
        """Count the buckets of each member anew, after members or their ranks changed."""
        self._members = members
        self._is_counted = True
        owned = Counter(self.owners.values())
        self._fewest = [(owned[member], *member.rank, member) for member in members]
        heapify(self._fewest)


class PinnedGroup(RouteGroup[M]):
    """The pinned strategies: an entry goes to the owner of its bucket. Entries of a full owner wait, others go on.

    A doubted member owns nothing, unless all are doubted. While it has room it is lent entries that were not tried
    before, in turn with the others, so that it can show that it keeps up.
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
        ready: deque[RouteGroup[M]],
        bucket_of: Callable[[M], int],
        uneven: "dict[RouteGroup[M], None]",
    ) -> None:
        """The group adds itself to `uneven` when entries wait for one member and others may have room."""
        super().__init__(filter, priority, ready)
        self.buckets: BucketOwners[M] = BucketOwners()
        self._bucket_of = bucket_of
        self._uneven = uneven
        self._open: dict[LaneDelivery[M], int] = {}
        self._roomy: dict[RouteMember[M], None] = {}
        # Those that are doubted, with what `_given` was when they last got one.
        self._doubted: dict[RouteMember[M], int] = {}
        self._lendable: dict[RouteMember[M], None] = {}
        self._given = 0
        # Entries that came up while their owner was full; the others are in the group's queue.
        self._waiting: dict[RouteMember[M], Queue[M]] = {}
        # The first waiting entry of each owner that has room again: a heap of position, number and owner.
        # Of an owner's items only that with the latest number counts.
        self._heads: list[tuple[int, int, RouteMember[M]]] = []
        self._numbers = count()
        self._latest: dict[RouteMember[M], int] = {}

    @property
    def has_room(self) -> bool:
        return bool(self._roomy)

    @property
    def has_queued(self) -> bool:
        return bool(self._queue) or any(self._waiting.values())

    @property
    def has_next(self) -> bool:
        return self._next() is not None

    def take(self) -> tuple[LaneEntry[M], RouteMember[M]] | None:
        found = self._next()
        if found is None:
            return None
        entry, member, queue = found
        queue.pop()
        return entry, member

    def assign(self, entry: LaneEntry[M], *, first: bool = False) -> RouteMember[M] | None:
        if not self._roomy or (not first and (self._queue or entry.position > self._known_to)):
            return None
        member = self._member_for(entry)
        return None if member.full or (not first and self._waiting[member]) else member

    def _at_hand(self) -> int:
        return super()._at_hand() + sum(map(len, self._waiting.values()))

    def clear(self) -> list[LaneEntry[M]]:
        entries = super().clear()
        for waiting in self._waiting.values():
            entries += waiting.clear()
        return sorted(dict.fromkeys(entries), key=attrgetter("position"))

    # Members

    def add(self, member: RouteMember[M]) -> None:
        self._waiting[member] = Queue()
        super().add(member)
        if member.consumer.doubted:
            self.doubt(member)
        else:
            self._share_with(member)

    def remove(self, member: RouteMember[M]) -> None:
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

    def gained_room(self, member: RouteMember[M]) -> None:
        if not self._roomy and len(self.members) > 1:
            self._uneven[self] = None
        self._roomy[member] = None
        if member in self._doubted:
            self._lendable[member] = None
        self._show_head(member)
        self.wake()

    def lost_room(self, member: RouteMember[M]) -> None:
        del self._roomy[member]
        self._lendable.pop(member, None)
        if not self._roomy:
            self._uneven.pop(self, None)

    def opened(self, delivery: LaneDelivery[M]) -> None:
        bucket = self._bucket_of(delivery.message)
        self._open[delivery] = bucket
        self.buckets.opened(bucket)
        if delivery.member in self._doubted:
            self._doubted[delivery.member] = self._given
        else:
            self._given += 1

    def closed(self, delivery: LaneDelivery[M]) -> None:
        # One that its member brought along from another group is not counted here.
        bucket = self._open.pop(delivery, None)
        if bucket is not None:
            self.buckets.closed(bucket)

    # Members that do not keep up

    def doubt(self, member: RouteMember[M]) -> None:
        self._doubted[member] = self._given
        if not member.full:
            self._lendable[member] = None
        self._give_up([member])

    def trust(self, member: RouteMember[M]) -> None:
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

    def _owners(self) -> list[RouteMember[M]]:
        """Return the members that may own buckets: those not doubted, or all if all are."""
        return [member for member in self.members if member not in self._doubted] or self.members

    def _member_for(self, entry: LaneEntry[M]) -> RouteMember[M]:
        """Return the owner of an entry's bucket, or a doubted member that it is lent to."""
        if self._lendable and not entry.attempts and not entry.suspect:
            for member in self._lendable:
                # Only after one of the others got one, so that no entry returns to the member that lost it.
                if self._doubted[member] < self._given:
                    return member
        return self.buckets.owner_of(self._bucket_of(entry.message))

    def _share_with(self, member: RouteMember[M]) -> None:
        """Give a member that comes or is trusted again its share; doubted ones need none from now on."""
        if self._doubted:
            self._give_up(list(self._doubted))
        for loser in self.buckets.share_with(member, self._owners()):
            self._queue_anew(loser)

    def _give_up(self, members: Sequence[RouteMember[M]]) -> None:
        """Leave the buckets of these members to others, as their next messages come."""
        self.buckets.release(members, self._owners())
        for member in members:
            self._queue_anew(member)

    def _hand_over(self, member: RouteMember[M], takers: Sequence[RouteMember[M]], most: int) -> int:
        """Give `takers` the buckets of entries that wait for a member, about `most`; return their number."""
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

    def _next(self) -> tuple[LaneEntry[M], RouteMember[M], Queue[M]] | None:
        """Return the next entry to hand out, its member, and the queue that it is the first of."""
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

    def _first_waiting(self) -> tuple[LaneEntry[M], RouteMember[M], Queue[M]] | None:
        """Return the same for entries that waited and whose owner has room again."""
        while self._heads:
            position, number, member = self._heads[0]
            if self._latest.get(member) != number or member.full:
                heappop(self._heads)
                continue
            entry = self._waiting[member].first()
            if entry is not None and entry.position == position:
                return entry, member, self._waiting[member]
            # That entry was taken or withdrawn.
            heappop(self._heads)
            self._show_head(member)
        return None

    def _show_head(self, member: RouteMember[M]) -> None:
        entry = self._waiting[member].first()
        if entry is not None:
            self._latest[member] = number = next(self._numbers)
            heappush(self._heads, (entry.position, number, member))

    def _queue_anew(self, member: RouteMember[M]) -> None:
        """Queue the entries that wait for a member again, since buckets of its changed hands."""
        for entry in self._waiting[member].clear():
            self._queue.push(entry)
        self.wake()
