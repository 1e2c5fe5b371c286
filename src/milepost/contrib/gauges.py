"""Gauges of the log and the subscriptions of a program: read from what is stored when somebody measures."""

import asyncio
import logging
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic

import msgspec

from milepost.app import Milepost
from milepost.engine.observe.events import Started, Stopped
from milepost.engine.operate.info import Status, SubscriptionInfo
from milepost.errors import Unavailable
from milepost.log.protocol import Log
from milepost.throttled_warnings import ThrottledWarnings

GAUGES_FRESH_SECONDS = 1.0
"""Seconds for which an answer serves all who ask."""
GAUGES_TIMEOUT_SECONDS = 3.0
"""Seconds that somebody waits for an answer."""
GAUGES_KEPT_SECONDS = 90.0
"""Seconds after which an old answer is worse than none."""

MAX_CAUSE_BYTES = 250
"""Bytes of a key or of filters that are told."""


class LogGauges(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """How the log stands."""

    horizon: int
    """The position up to which everything is final, and can be handled."""
    head: int
    """The newest position that was given to an append."""
    held_for: float = 0.0
    """The age in seconds of the transaction that holds the horizon back, if one does and its age is known."""
    held_by: str = ""
    """Who that is: its pid, or the name of a prepared transaction."""
    held_lasting: str = ""
    """The same in words, once it lasts for longer than any short append takes."""
    application: str = ""
    """What it calls itself."""


class SubscriptionGauges(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """How a subscription stands, whoever works on it."""

    subscription: str
    status: Status
    lag_positions: int
    lag_seconds: float
    in_flight: int
    retrying: int
    waiting: int
    parked: int
    unrouted: int
    stopped_lanes: int = 0
    """Lanes that read no further, since a limit of rows is reached."""
    stopped_limit: str = ""
    """That limit, if there are such lanes: `max_waiting` or `max_unrouted`; of two the one of the first lane."""
    stopped_cause: str = ""
    """A key or the filters that are behind it, not longer than a label should be."""

    @classmethod
    def of(cls, info: SubscriptionInfo) -> "SubscriptionGauges":
        """What of everything that is known is measured."""
        limits = [lane.stopped for lane in info.lanes if lane.stopped is not None]
        return cls(
            subscription=info.name,
            status=info.status,
            lag_positions=info.lag.positions,
            lag_seconds=info.lag.seconds,
            in_flight=info.in_flight,
            retrying=info.retrying,
            waiting=info.waiting,
            parked=info.parked,
            unrouted=info.unrouted,
            stopped_lanes=len(limits),
            stopped_limit=limits[0].limit if limits else "",
            stopped_cause=_label_text(limits[0].cause) if limits else "",
        )


class ProgramGauges(msgspec.Struct, frozen=True):
    """How things stand."""

    log: LogGauges
    subscriptions: tuple[SubscriptionGauges, ...]
    """Those of the program's own group."""


def _label_text(text: str) -> str:
    """Without what would have to be escaped, and cut: a process says all of it in one piece."""
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return printable.encode()[:MAX_CAUSE_BYTES].decode(errors="ignore")


_gauge_warnings = ThrottledWarnings(logging.getLogger("milepost.metrics"), "how the subscriptions stand")


async def read_gauges(mp: Milepost) -> ProgramGauges | None:
    """Asks; None where nobody answers: who only measures must not fail by that.

    It costs the same however long the log is, and however much was handled.
    """
    try:
        async with asyncio.timeout(GAUGES_TIMEOUT_SECONDS):
            return await _query_gauges(mp)
    except (Unavailable, TimeoutError):
        return None
    except Exception:
        _gauge_warnings.warn("is not known", with_traceback=True)
        return None


async def _query_gauges(mp: Milepost) -> ProgramGauges:
    group = mp.settings["group"].value
    infos = [info for info in await mp.subscriptions() if info.group == group]
    return ProgramGauges(await _log_gauges(mp.log), tuple(map(SubscriptionGauges.of, infos)))


async def _log_gauges(log: Log) -> LogGauges:
    held = await log.held_back()
    if not held.holders:
        return LogGauges(horizon=held.horizon, head=held.drawn)
    oldest = held.holders[0]
    return LogGauges(
        horizon=held.horizon,
        head=held.drawn,
        held_for=held.seconds,
        held_by=str(oldest.pid or oldest.gid),
        held_lasting=held.lasting[0].name if held.lasting else "",
        application=oldest.application,
    )


class GaugeReader:
    """The outlook of a program while it works on its subscriptions, for who asks from any thread."""

    def __init__(self, mp: Milepost) -> None:
        self._mp = mp
        self._loop: asyncio.AbstractEventLoop | None = None
        self._working: set[tuple[str, str]] = set()
        self._last: ProgramGauges | None = None
        self._asked_at = self._answered_at = float("-inf")
        mp.on_event(self._worked)

    def _worked(self, event: Started | Stopped) -> None:
        of = event.group, event.subscription
        if isinstance(event, Started):
            self._working.add(of)
        else:
            self._working.discard(of)
        self._loop = asyncio.get_running_loop() if self._working else None

    def now(self) -> ProgramGauges | None:
        """How things stand; None if nothing works here, or nobody answers.

        Who asks on the program's own event loop cannot wait for the answer, and is given the one before.
        """
        loop = self._loop
        if loop is None:
            return None
        if monotonic() - self._asked_at > GAUGES_FRESH_SECONDS:
            self._ask(loop)
        return self._last if monotonic() - self._answered_at < GAUGES_KEPT_SECONDS else None

    def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asked_at = monotonic()
        asking = self.ask()
        try:
            future = asyncio.run_coroutine_threadsafe(asking, loop)
        except RuntimeError:
            asking.close()
            return
        if not _is_running_loop(loop):
            _wait_for_gauges(future)

    async def ask(self) -> ProgramGauges | None:
        """Asks now; to be awaited on the program's event loop. None if nobody answers."""
        outlook = await read_gauges(self._mp)
        if outlook is not None:
            self._last, self._answered_at = outlook, monotonic()
        return outlook


def _is_running_loop(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _wait_for_gauges(future: "Future[ProgramGauges | None]") -> None:
    with suppress(Exception):
        future.result(GAUGES_TIMEOUT_SECONDS)
    future.cancel()
