"""Tells what is settled here of what was pulled, so that it can be seen from anywhere."""

import asyncio
import os
import socket
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import inf
from time import monotonic
from uuid import uuid4

from milepost.errors import Unavailable
from milepost.progress.protocol import Progress
from milepost.progress.pulling import Claim, Settlement
from milepost.progress.reports import Report
from milepost.progress.storable import storable_text

TELL = 2.0
"""Seconds between two reports."""
LONGEST_ERROR = 1000
"""Characters of an error that are told."""
REMEMBERED = 10_000
"""Of so many claims, each of one or many deliveries, it is remembered when they were made."""
LATENCIES = 1000
"""Of so many settlements, the last ones, latencies are told."""
TOLD_LATENCIES = 100
"""How many stand for all of these."""


class _Numbers:
    """What became of one subscription here."""

    def __init__(self) -> None:
        self.settled = 0
        """Since the last report."""
        self.error: str | None = None
        """The last one, if it is to be told yet."""
        self.told: tuple[str | None, float | None] = None, None
        """The last error that was told, and when."""
        self.attempts = 0
        self.seconds = 0.0
        self.latencies: deque[float] = deque(maxlen=LATENCIES)

    def took(self, seconds: float, count: int) -> None:
        self.attempts += count
        self.seconds += seconds * count
        self.latencies.extend([seconds] * min(count, LATENCIES))

    def report(self, subscription: int, elapsed: float) -> Report:
        error, at = self.told
        ordered = sorted(self.latencies)
        step = max(1, len(ordered) // TOLD_LATENCIES)
        return Report(
            subscription=subscription,
            rate=round(self.settled / elapsed, 3),
            in_flight=0,
            attempts=self.attempts,
            handling_seconds=round(self.seconds, 6),
            latencies=tuple(round(seconds, 6) for seconds in ordered[step // 2 :: step]),
            error=error,
            error_at=at,
        )


class PullReporting:
    """Counts what this process settles, and tells it now and then, beside a settlement."""

    def __init__(self) -> None:
        self._worker = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self._since = -inf
        self._begun: dict[str, float] = {}
        """By what a claim has that nobody can guess."""
        self._numbers: defaultdict[int, _Numbers] = defaultdict(_Numbers)

    def begun(self, claims: Iterable[Claim]) -> None:
        """These were made here just now."""
        self._begun |= dict.fromkeys({claim.id for claim in claims}, monotonic())
        while len(self._begun) > REMEMBERED:
            del self._begun[next(iter(self._begun))]

    def seconds(self, claim: Claim) -> float:
        """How long ago it was made here; 0 if that was elsewhere, or too long ago."""
        begun = self._begun.get(claim.id)
        return 0.0 if begun is None else monotonic() - begun

    async def note(self, progress: Progress, settlements: Sequence[Settlement]) -> None:
        """These were settled."""
        ended = [settlement for settlement in settlements if settlement.outcome != "extend"]
        for (subscription, id_), count in Counter(each.claim.batch for each in ended).items():
            self._count(subscription, id_, count)
        for settlement in ended:
            if settlement.outcome in ("retry", "park"):
                error = storable_text(settlement.reason or settlement.outcome)
                self._numbers[settlement.claim.subscription].error = error
        now = asyncio.get_running_loop().time()
        if now - self._since >= TELL:
            elapsed, self._since = now - self._since, now
            await self._tell(progress, elapsed)

    def _count(self, subscription: int, id_: str, count: int) -> None:
        numbers = self._numbers[subscription]
        numbers.settled += count
        begun = self._begun.get(id_)
        # Who settles what another process pulled does not know how long that took.
        if begun is not None:
            numbers.took(monotonic() - begun, count)

    async def _tell(self, progress: Progress, elapsed: float) -> None:
        settled = {subscription: numbers for subscription, numbers in self._numbers.items() if numbers.settled}
        with suppress(Unavailable):
            if any(numbers.error is not None for numbers in settled.values()):
                at = await progress.now()
                for numbers in settled.values():
                    if numbers.error is not None:
                        numbers.told, numbers.error = (numbers.error[:LONGEST_ERROR], at), None
            reports = [numbers.report(subscription, elapsed) for subscription, numbers in settled.items()]
            for numbers in settled.values():
                numbers.settled = 0
            await progress.report(self._worker, reports)
