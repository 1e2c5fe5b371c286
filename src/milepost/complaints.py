"""Complaints that do not repeat themselves."""

import logging
from time import monotonic

EVERY = 10.0
"""Seconds between two complaints about one thing."""


class Complaints:
    """What is wrong with one thing, as warnings: one now and then, however often it happens."""

    def __init__(self, logger: logging.Logger, about: str) -> None:
        self._logger = logger
        self._about = about
        self._made_at = float("-inf")
        self._unsaid = 0

    def make(self, problem: str, *, with_traceback: bool = False) -> None:
        """Says it, unless something was said a moment ago."""
        now = monotonic()
        if now - self._made_at < EVERY:
            self._unsaid += 1
            return
        before = f" ({self._unsaid:,} complaints about it were left out)" if self._unsaid else ""
        self._logger.warning("%s %s%s", self._about, problem, before, exc_info=with_traceback)
        self._made_at, self._unsaid = now, 0
