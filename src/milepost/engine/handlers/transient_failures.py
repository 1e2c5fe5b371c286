"""What follows a lost race or connection: smaller transactions, and pauses that are no attempts."""

from collections.abc import Callable
from dataclasses import dataclass

GROWTH_PAUSES_SECONDS = (5.0, 60.0)
"""Shortest and longest time without a lost race before more are tried, in seconds."""


class AdaptiveBatchSize:
    """As many as may be, fewer after a transaction lost a race, and more again when none has for a while.

    Transactions of several messages that write the same rows in another order wait for each other in a circle.
    PostgreSQL notices after a second and ends one of them; with smaller ones it does not come to that.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.size = most
        """How many it is now."""
        self._pause = GROWTH_PAUSES_SECONDS[0]
        self._grows_at = 0.0

    def lost(self, now: float) -> None:
        """A transaction lost a race."""
        self.size = max(1, self.size // 4)
        self._grows_at = now + self._pause
        self._pause = min(2 * self._pause, GROWTH_PAUSES_SECONDS[1])

    def committed(self, now: float) -> None:
        """One did not."""
        if self.size == self._most or now < self._grows_at:
            return
        self.size = min(2 * self.size, self._most)
        self._grows_at = now + self._pause
        if self.size == self._most:
            self._pause = GROWTH_PAUSES_SECONDS[0]


UNCOUNTED_SECONDS = 300.0
"""For how long lost races of one message are no attempts; each one after that is."""
MAX_LOST_CONNECTIONS = 10
"""How many connections in a row a message may lose before one more is an attempt."""
MAX_TRIES_IN_PLACE = 10
"""After so many lost races in a row a message is put off, so that others of its lane go on."""
IN_PLACE_PAUSE_SECONDS = (0.005, 0.5)
"""Longest pause in place after the first of them, and after any."""
PUT_OFF_SECONDS = (1.0, 30.0)
"""For how long a message is put off the first time, and at most."""


@dataclass(frozen=True)
class RerunPause:
    """How long a message waits before it runs again."""

    seconds: float
    in_place: bool
    """Whether its lane waits with it."""


@dataclass
class _LostRaces:
    since: float
    lost: int = 0


class TransientFailures:
    """Counts, for each message, how often in a row it ran for nothing. `random` gives numbers from 0 up to 1."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._races: dict[int, _LostRaces] = {}
        self._connections: dict[int, int] = {}

    def lost_race(self, position: int, now: float) -> RerunPause | None:
        """A transaction lost a race with another one. None: it has for too long, and this is an attempt.

        `now` is any clock's time, in seconds.
        """
        races = self._races.setdefault(position, _LostRaces(now))
        left = races.since + UNCOUNTED_SECONDS - now
        if left <= 0:
            return None
        put_off = races.lost - MAX_TRIES_IN_PLACE
        races.lost += 1
        if put_off < 0:
            return RerunPause(self._in_place(races.lost - 1), in_place=True)
        # Of two that get in each other's way one is to be first the next time.
        seconds = min(PUT_OFF_SECONDS[0] * 2.0**put_off, PUT_OFF_SECONDS[1]) * (1 + self._random()) / 2
        return RerunPause(min(seconds, left), in_place=False)

    def lost_connection(self, position: int) -> float | None:
        """A connection ended. Return how many seconds to wait; None: it had too many, and begins anew."""
        times = self._connections.pop(position, 0)
        if times == MAX_LOST_CONNECTIONS:
            return None
        self._connections[position] = times + 1
        return self._in_place(times)

    def _in_place(self, times: int) -> float:
        return self._random() * min(IN_PLACE_PAUSE_SECONDS[0] * 2.0**times, IN_PLACE_PAUSE_SECONDS[1])

    def forget(self, positions: list[int]) -> None:
        """Something came of these."""
        for position in positions:
            self._races.pop(position, None)
            self._connections.pop(position, None)

    def __len__(self) -> int:
        return len(self._races.keys() | self._connections.keys())
