"""Messages that run for nothing again and again, each time by nobody's fault as far as anybody can tell."""

from collections.abc import Callable

MOST = 10
"""How many in a row are no attempt; the one after them is."""
PAUSES = (0.005, 0.5)
"""Longest pause after the first of them, and after any, in seconds."""


class Setbacks:
    """Counts, for each message, how often in a row it ran for nothing. `random` gives numbers from 0 up to 1."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._times: dict[int, int] = {}

    def pause(self, position: int) -> float | None:
        """One more: how many seconds to wait before it runs again. None: it had too many, and begins anew."""
        times = self._times.pop(position, 0)
        if times == MOST:
            return None
        self._times[position] = times + 1
        # Of two that get in each other's way one is to be first the next time.
        return self._random() * min(PAUSES[0] * 2.0**times, PAUSES[1])

    def forget(self, positions: list[int]) -> None:
        """Something came of these."""
        for position in positions:
            self._times.pop(position, None)

    def __len__(self) -> int:
        return len(self._times)
