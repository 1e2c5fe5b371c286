"""What Prometheus collects of a program.

`instrument(mp)` adds it to the metrics that an application exposes already. `milepost run --health` has them at
`/metrics` without that, for all processes of the program.
"""

import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import accumulate, chain
from weakref import WeakKeyDictionary

from milepost.app import Milepost
from milepost.contrib.gauges import GaugeReader, LogGauges, ProgramGauges, SubscriptionGauges
from milepost.engine.observe.counters import (
    HISTOGRAM_BOUNDS_SECONDS,
    EventCounter,
    GroupAndName,
    SubscriptionCounters,
    sum_by_subscription,
)

try:
    from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        InfoMetricFamily,
        Metric,
    )
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        'milepost.contrib.prometheus needs prometheus-client: pip install "milepost[prometheus]"'
    ) from error

__all__ = ["CONTENT_TYPE_LATEST", "Metrics", "MetricsSnapshot", "families", "instrument", "text"]

LABELS = ("group", "subscription")
STATUSES = ("running", "paused", "stalled", "stopped", "waiting")

_COUNTERS = {
    "handled": ("milepost_messages_handled", "Messages that were handled."),
    "failed": ("milepost_attempts_failed", "Attempts to handle a message that failed."),
    "retried": ("milepost_messages_retried", "How often a message was put aside to be tried again."),
    "parked": ("milepost_messages_parked", "Messages that were given up until a person decides."),
    "skipped": ("milepost_messages_skipped", "Messages that a handler did not want."),
    "lost": ("milepost_lanes_lost", "Lanes that were lost instead of released."),
}
_DELIVERY_STATES = ("retrying", "waiting", "parked", "unrouted")


@dataclass(frozen=True)
class MetricsSnapshot:
    """What is known of a program at a moment."""

    group: str
    figures: Sequence[tuple[GroupAndName, SubscriptionCounters]] = ()
    log: LogGauges | None = None
    subscriptions: Sequence[SubscriptionGauges] = ()


def instrument(mp: Milepost, registry: CollectorRegistry = REGISTRY) -> "Metrics":
    """Counts what this process does for a program, from its next start on, and lets a registry collect it.

    A second program of the process joins the first, under its own group.
    """
    metrics = _metrics_by_registry.get(registry)
    if metrics is None:
        metrics = _metrics_by_registry[registry] = Metrics()
        registry.register(metrics)
    metrics.add(mp)
    return metrics


_metrics_by_registry: "WeakKeyDictionary[CollectorRegistry, Metrics]" = WeakKeyDictionary()


class Metrics(Collector):
    """What a registry collects: of programs in this process, and of their subscriptions wherever they run."""

    def __init__(self) -> None:
        self._programs: list[_MeasuredProgram] = []

    def add(self, mp: Milepost) -> None:
        """One more program; one that is there already is not counted twice."""
        if all(program.mp is not mp for program in self._programs):
            self._programs.append(_MeasuredProgram(mp))

    def describe(self) -> Iterator[Metric]:
        """The same without values: to register it asks nobody."""
        return families([])

    def collect(self) -> Iterator[Metric]:
        """Everything as of now. How subscriptions stand is asked of the database, at most once a second.

        On a program's own event loop that cannot be waited for: there the answer before is given.
        """
        return families([program.now() for program in self._programs])

    async def text(self) -> bytes:
        """The metrics of these programs alone, as Prometheus reads them; for a route of an async application."""
        return text(families([await program.ask() for program in self._programs]))


class _MeasuredProgram:
    def __init__(self, mp: Milepost) -> None:
        self.mp = mp
        self._group = mp.settings["group"].value
        self._counting = EventCounter(mp.on_event)
        self._lookout = GaugeReader(mp)

    def now(self) -> MetricsSnapshot:
        return self._with(self._lookout.now())

    async def ask(self) -> MetricsSnapshot:
        return self._with(await self._lookout.ask())

    def _with(self, outlook: ProgramGauges | None) -> MetricsSnapshot:
        figures = self._counting.figures()
        if outlook is None:
            return MetricsSnapshot(self._group, figures)
        return MetricsSnapshot(self._group, figures, outlook.log, outlook.subscriptions)


def text(found: Iterable[Metric]) -> bytes:
    """Metrics as Prometheus reads them; their type is `CONTENT_TYPE_LATEST`."""
    return generate_latest(_FixedCollector(found))


class _FixedCollector(Collector):
    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found


def families(snapshots: Sequence[MetricsSnapshot]) -> Iterator[Metric]:
    """Everything there is to say of programs."""
    return chain(
        [_build_family()],
        _counter_families(snapshots),
        _subscription_families(snapshots),
        _log_families(snapshots),
    )


def _build_family() -> Metric:
    labels = {"version": version("milepost"), "python": platform.python_version()}
    return InfoMetricFamily("milepost_build", "What runs.", value=labels)


def _counter_families(snapshots: Sequence[MetricsSnapshot]) -> Iterator[Metric]:
    each = sum_by_subscription(chain.from_iterable(snapshot.figures for snapshot in snapshots)).items()
    for field, (name, meaning) in _COUNTERS.items():
        counter = CounterMetricFamily(name, meaning, labels=LABELS)
        for of, figures in each:
            counter.add_metric(of, getattr(figures, field))
        yield counter
    lanes = GaugeMetricFamily("milepost_lanes_held", "Lanes that are held here.", labels=LABELS)
    seconds = HistogramMetricFamily(
        "milepost_handling_seconds",
        "How long an attempt took for a message; the time of a batch is shared out evenly.",
        labels=LABELS,
    )
    for of, figures in each:
        lanes.add_metric(of, figures.lanes)
        seconds.add_metric(of, _histogram_buckets(figures.times), figures.seconds)
    yield from (lanes, seconds)


def _histogram_buckets(times: Sequence[int]) -> list[tuple[str, float]]:
    bounds = [*map(str, HISTOGRAM_BOUNDS_SECONDS), "+Inf"]
    return list(zip(bounds, map(float, accumulate(times)), strict=True))


def _subscription_families(snapshots: Sequence[MetricsSnapshot]) -> Iterator[Metric]:
    positions = GaugeMetricFamily(
        "milepost_lag_positions", "Positions up to the horizon that were not passed.", labels=LABELS
    )
    seconds = GaugeMetricFamily(
        "milepost_lag_seconds", "The age of the first message that was not passed.", labels=LABELS
    )
    in_flight = GaugeMetricFamily(
        "milepost_messages_in_flight", "Messages that handlers have now, wherever they run.", labels=LABELS
    )
    deliveries = GaugeMetricFamily(
        "milepost_deliveries", "Messages that need attention of their own.", labels=(*LABELS, "state")
    )
    status = GaugeMetricFamily(
        "milepost_subscription_status", "1 for the status that it has.", labels=(*LABELS, "status")
    )
    stopped = GaugeMetricFamily(
        "milepost_lanes_stopped",
        "Lanes that read no further, since a limit of rows is reached.",
        labels=(*LABELS, "limit", "cause"),
    )
    for group, each in ((one.group, each) for one in snapshots for each in one.subscriptions):
        of = (group, each.subscription)
        positions.add_metric(of, each.lag_positions)
        seconds.add_metric(of, each.lag_seconds)
        in_flight.add_metric(of, each.in_flight)
        for state in _DELIVERY_STATES:
            deliveries.add_metric((*of, state), getattr(each, state))
        for one in STATUSES:
            status.add_metric((*of, one), float(each.status == one))
        if each.stopped_lanes:
            stopped.add_metric((*of, each.stopped_limit, each.stopped_cause), each.stopped_lanes)
    yield from (positions, seconds, in_flight, deliveries, status, stopped)


def _log_families(snapshots: Sequence[MetricsSnapshot]) -> Iterator[Metric]:
    horizon = GaugeMetricFamily(
        "milepost_log_horizon_position", "Up to here everything is final.", labels=LABELS[:1]
    )
    head = GaugeMetricFamily(
        "milepost_log_head_position", "The newest position that was given to an append.", labels=LABELS[:1]
    )
    held = GaugeMetricFamily(
        "milepost_log_horizon_held_seconds",
        "The age of the transaction that holds the horizon back.",
        labels=("group", "pid", "application"),
    )
    for group, log in ((snapshot.group, snapshot.log) for snapshot in snapshots):
        if log is not None:
            horizon.add_metric((group,), log.horizon)
            head.add_metric((group,), log.head)
            if log.held_by:
                held.add_metric((group, log.held_by, log.application), log.held_for)
    yield from (horizon, head, held)
