"""How long to wait before something is tried again."""

import random
from typing import Final

FIRST: Final = 0.05
"""Seconds before the second try."""
LONGEST: Final = 5.0
"""Seconds between two tries at the most."""
FACTOR: Final = 2.0


class Backoff:
    """Waits that grow, each shortened at random so that those who failed together do not come back together."""

    def __init__(self) -> None:
        self._next = FIRST

    def wait(self) -> float:
        """Seconds to wait now; the next time they are more."""
        longest, self._next = self._next, min(LONGEST, self._next * FACTOR)
        return longest * random.uniform(0.5, 1)  # noqa: S311 - no secret

    def reset(self) -> None:
        """It has worked: the next wait is a short one."""
        self._next = FIRST
