"""How much a consumer is given at once, after it was late."""

from time import monotonic

FEW = 20
"""So many deliveries a consumer may be late with, and get as many again."""


class Allowance:
    """How many deliveries a consumer may have at once: what it asks for, until it is late with one of many.

    From then on as many as it settled while it had that one, for so many it manages in time; and one if it hangs.
    It may have twice as many whenever it has settled so many.
    """

    __slots__ = ("_alive_at", "_goal", "most", "settled")

    def __init__(self) -> None:
        self.most: int | None = None
        """None: as many as it asks for."""
        self.settled = 0
        """What its user has settled."""
        self._alive_at = float("-inf")
        self._goal = 0

    def limit(self, since: int, timeout: float) -> None:
        """A delivery has timed out that it had since it had settled so many.

        One that has said nothing for half of the time hangs, whatever it settled before.
        """
        hangs = monotonic() - self._alive_at > timeout / 2
        most = 1 if hangs else max(1, self.settled - since)
        self._set(most if self.most is None else min(most, self.most))

    def settle(self, count: int, wanted: int) -> bool:
        """So many were settled, of a consumer that wants to have so many; whether it may have more from now on."""
        self.live()
        self.settled += count
        if self.most is None or self.settled < self._goal:
            return False
        self._set(2 * self.most)
        if self.most >= wanted:
            self.most = None
        return True

    def live(self) -> None:
        """Its user has said something."""
        self._alive_at = monotonic()

    def _set(self, most: int) -> None:
        self.most = most
        self._goal = self.settled + most
