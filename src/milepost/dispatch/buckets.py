"""Which member owns which of the 1,024 buckets."""

from collections import Counter
from collections.abc import Collection, Sequence
from heapq import heapify, heapreplace
from typing import Generic

from milepost.dispatch.delivery import M
from milepost.dispatch.member import Member


class Buckets(Generic[M]):
    """Who owns each bucket that has an owner, and how many messages of each are in flight."""

    __slots__ = ("_fewest", "_is_counted", "_members", "in_flight", "owners")

    def __init__(self) -> None:
        # Only what is in use: there may be ten thousand groups.
        self.owners: dict[int, Member[M]] = {}
        self.in_flight: dict[int, int] = {}
        self._members: Sequence[Member[M]] = ()
        # How many buckets each member has, with its rank: a heap.
        self._fewest: list[tuple[int, int, int, Member[M]]] = []
        self._is_counted = True

    def owner_of(self, bucket: int) -> Member[M]:
        """The owner; one that has none goes to the member with the fewest, then to who came first."""
        owner = self.owners.get(bucket)
        if owner is None:
            if not self._is_counted:
                self.count(self._members)
            owned, arrival, number, owner = self._fewest[0]
            heapreplace(self._fewest, (owned + 1, arrival, number, owner))
            self.owners[bucket] = owner
        return owner

    def share_with(self, newcomer: Member[M], members: Sequence[Member[M]]) -> list[Member[M]]:
        """Gives a new one of these members its share, and returns those whom buckets were taken from.

        It takes from those above the average until it has the average: the buckets with the least in flight.
        """
        owned = Counter(self.owners.values())
        average = len(self.owners) // len(members)
        losers: dict[Member[M], None] = {}
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

    def release(self, leavers: Collection[Member[M]], members: Sequence[Member[M]]) -> None:
        """Leaves the buckets of some to nobody; `members` are those who get them."""
        self.owners = {bucket: owner for bucket, owner in self.owners.items() if owner not in leavers}
        self.count(members)

    def move(self, bucket: int, owner: Member[M]) -> None:
        """Gives one to this member, whoever had it."""
        self.owners[bucket] = owner
        self._is_counted = False

    def opened(self, bucket: int) -> None:
        """Counts one more message in flight."""
        self.in_flight[bucket] = self.in_flight.get(bucket, 0) + 1

    def closed(self, bucket: int) -> None:
        """Counts one less."""
        others = self.in_flight.pop(bucket) - 1
        if others:
            self.in_flight[bucket] = others

    def count(self, members: Sequence[Member[M]]) -> None:
        """Counts anew what each has, after members or their ranks changed."""
        self._members = members
        self._is_counted = True
        owned = Counter(self.owners.values())
        self._fewest = [(owned[member], *member.rank, member) for member in members]
        heapify(self._fewest)
