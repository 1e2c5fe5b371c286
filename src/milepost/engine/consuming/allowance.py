"""How much a consumer is given at once, after it was late."""

FEW = 20
"""So many deliveries a consumer may be late with, and get as many again."""


class Allowance:
    """How many deliveries a consumer may have at once: what it asks for, until one of them times out.

    If it has more than a few then, it may have as many as it settled while it had that one, at least one: so
    many it manages in time. It may have twice as many whenever it has settled so many.
    """

    __slots__ = ("_goal", "most", "settled")

    def __init__(self) -> None:
        self.most: int | None = None
        """None: as many as it asks for."""
        self.settled = 0
        """What its user has settled."""
        self._goal = 0

    def limit(self, since: int, wanted: int) -> None:
        """A delivery has timed out that it had since it had settled so many; it wants to have so many."""
        self._set(max(1, self.settled - since), wanted)

    def settle(self, count: int, wanted: int) -> bool:
        """So many were settled; returns whether it may have more from now on."""
        self.settled += count
        if self.most is None or self.settled < self._goal:
            return False
        self._set(2 * self.most, wanted)
        return True

    def _set(self, most: int, wanted: int) -> None:
        self.most = most if most < wanted else None
        self._goal = self.settled + most
