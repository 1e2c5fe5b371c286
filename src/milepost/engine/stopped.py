"""Which lanes of a subscription read no further, because a limit of rows is reached."""

import asyncio
from collections.abc import Callable, Mapping
from math import inf

from milepost.dispatch import LimitReached
from milepost.engine.journal import Journal
from milepost.engine.owned import Owned

LOG_AGAIN_SECONDS = 60.0
"""Seconds between two lines that say so: at a limit a lane may stop and go on with every message."""


class StoppedLanes:
    """Follows the lanes of a subscription that a process holds, and logs when they stop and when all go on.

    `lanes` are these, by number, as they change. `report` is called when it should be told at once how they stand.
    """

    def __init__(self, journal: Journal, lanes: Mapping[int, Owned], report: Callable[[], None]) -> None:
        self._journal = journal
        self._lanes = lanes
        self._report = report
        self._logged_at = -inf
        self._is_logged = False
        self.limits: dict[int, LimitReached] = {}
        """The limit of each lane that is stopped."""

    def filled(self, owned: Owned) -> None:
        """A lane has got messages."""
        if self.limits or owned.lane.stopped is not None:
            self.look()

    def exchanged(self, owned: Owned) -> None:
        """A lane has written, and knows how many rows there are."""
        if self.limits or owned.lane.stopped is not None:
            self._pass_on(owned)
            self.look()

    def look(self) -> None:
        """Look at all lanes again: some may be here no longer."""
        stopped = {number: owned.lane.stopped for number, owned in self._lanes.items() if not owned.closing}
        before, self.limits = self.limits, {n: limit for n, limit in stopped.items() if limit is not None}
        if self.limits:
            self._log()
        elif before and self._is_logged:
            self._is_logged = False
            if before.keys() & stopped.keys():
                # Otherwise they are with others, and may stand still there.
                self._journal.warning("reads on: there are fewer such messages than the limit allows")

    def _pass_on(self, owned: Owned) -> None:
        """Let stopped lanes ask if this one was told of fewer rows than their limit."""
        for number, limit in self.limits.items():
            other = self._lanes.get(number)
            if other is not None and limit.of(owned.lane.counts) < limit.most <= limit.of(other.lane.counts):
                other.lane.poke()

    def _log(self) -> None:
        now = asyncio.get_running_loop().time()
        if not self._is_logged and now - self._logged_at >= LOG_AGAIN_SECONDS:
            self._logged_at, self._is_logged = now, True
            number, limit = next(iter(self.limits.items()))
            self._journal.error("lane %d reads no further: %s", number, limit, lane=number)
            self._report()
