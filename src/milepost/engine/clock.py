"""The database's time, between two looks at it."""

import time


class Clock:
    """Tells the time that decides: the database's, as of the last look, and what has passed here since then.

    A worker's own clock decides nothing; it only measures short spans.
    """

    def __init__(self) -> None:
        self._told = 0.0
        self._at = time.monotonic()

    def set(self, now: float) -> None:
        """What the database said just now."""
        self._told = now
        self._at = time.monotonic()

    def now(self) -> float:
        """Seconds since 1970."""
        return self._told + time.monotonic() - self._at

    def until(self, moment: float) -> float:
        """Seconds from now; 0 if it has passed."""
        return max(0.0, moment - self.now())
