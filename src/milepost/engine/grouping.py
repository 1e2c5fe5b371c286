"""How many messages go into one transaction."""

PAUSES = (5.0, 60.0)
"""Shortest and longest time without a lost race before more are tried, in seconds."""


class Grouping:
    """As many as may be, fewer after a transaction lost a race, and more again when none has for a while.

    Transactions of several messages that write the same rows in another order wait for each other in a circle.
    PostgreSQL notices after a second and ends one of them; with smaller ones it does not come to that.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.size = most
        """How many it is now."""
        self._pause = PAUSES[0]
        self._grows_at = 0.0

    def lost(self, now: float) -> None:
        """A transaction lost a race."""
        self.size = max(1, self.size // 4)
        self._grows_at = now + self._pause
        self._pause = min(2 * self._pause, PAUSES[1])

    def committed(self, now: float) -> None:
        """One did not."""
        if self.size == self._most or now < self._grows_at:
            return
        self.size = min(2 * self.size, self._most)
        self._grows_at = now + self._pause
        if self.size == self._most:
            self._pause = PAUSES[0]
