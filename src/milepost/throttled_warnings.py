"""Warnings that do not repeat themselves: at most one in ten seconds for one subject."""

import logging
from time import monotonic

WARNING_PAUSE_SECONDS = 10.0
"""Seconds between two warnings about one subject."""


class ThrottledWarnings:
    """Log warnings about one subject, at most one in `WARNING_PAUSE_SECONDS`."""

    def __init__(self, logger: logging.Logger, subject: str) -> None:
        self._logger = logger
        self._subject = subject
        self._warned_at = float("-inf")
        self._left_out = 0

    def warn(self, problem: str, *, with_traceback: bool = False) -> None:
        """Log the problem as a warning. Soon after another one it is only counted, and the next warning tells."""
        now = monotonic()
        if now - self._warned_at < WARNING_PAUSE_SECONDS:
            self._left_out += 1
            return
        before = f" ({self._left_out:,} warnings about it were left out)" if self._left_out else ""
        self._logger.warning("%s %s%s", self._subject, problem, before, exc_info=with_traceback)
        self._warned_at, self._left_out = now, 0
