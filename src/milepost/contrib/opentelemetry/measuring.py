"""Metrics: of the conventions for messaging, and of what Milepost knows beside them."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import attrgetter
from threading import Lock
from typing import Any, TypeAlias

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from milepost.app import Milepost
from milepost.contrib.opentelemetry import attributes as names
from milepost.contrib.outlook import Lookout, SubscriptionOutlook
from milepost.engine.figures import BOUNDS, Counting, Figures, Of, summed

Observe: TypeAlias = Callable[[CallbackOptions], Iterable[Observation]]

_SENT_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)

_COUNTED = {
    "milepost.messages.handled": ("handled", "{message}", "Messages that were handled."),
    "milepost.attempts.failed": ("failed", "{attempt}", "Attempts to handle a message that failed."),
    "milepost.messages.retried": ("retried", "{message}", "How often a message was put aside to be tried again."),
    "milepost.messages.parked": ("parked", "{message}", "Messages that were given up until a person decides."),
    "milepost.messages.skipped": ("skipped", "{message}", "Messages that a handler did not want."),
    "milepost.lanes.lost": ("lost", "{lane}", "Lanes that were lost instead of released."),
}
_STATES = ("retrying", "waiting", "parked", "unrouted")


class Measuring:
    """Measures what a process does with its programs. Most of it is asked when somebody collects."""

    def __init__(self, meter: Meter) -> None:
        self._programs: list[tuple[str, Counting, Lookout]] = []
        self._lock = Lock()
        self._begun: Counter[Of] = Counter()
        self._ended: Counter[Of] = Counter()
        self._duration = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "How long calls of handlers took.",
            explicit_bucket_boundaries_advisory=BOUNDS,
        )
        self._append_duration = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "How long appends took.",
            explicit_bucket_boundaries_advisory=_SENT_BOUNDS,
        )
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Messages appended.")
        self._observe_counts(meter)
        self._observe_standing(meter)

    def add(self, mp: Milepost) -> None:
        """One more program. A process has one set of instruments, however many programs it has."""
        self._programs.append((mp.settings["group"].value, Counting(mp.on_event), Lookout(mp)))

    # Told by tracing, from any thread

    def begun(self, of: Of, count: int) -> None:
        """A handler is called for so many messages."""
        with self._lock:
            self._begun[of] += count

    def ended(self, of: Of, count: int, seconds: float, error: BaseException | None) -> None:
        """That call has ended."""
        with self._lock:
            self._ended[of] += count
        # Few attributes: the SDK takes more than a microsecond for each, at each call.
        attributes = {**_attributes(of), names.OPERATION_NAME: "process"}
        self._duration.record(seconds, _with_error(attributes, error))

    def appended(self, categories: set[str], count: int, seconds: float, error: BaseException | None) -> None:
        """An append has ended."""
        attributes: dict[str, Any] = dict(names.APPEND)
        if len(categories) == 1:
            attributes[names.DESTINATION] = next(iter(categories))
        attributes = _with_error(attributes, error)
        self._sent.add(count, attributes)
        self._append_duration.record(seconds, attributes)

    # Asked by who collects

    def _observe_counts(self, meter: Meter) -> None:
        for name, (field, unit, meaning) in _COUNTED.items():
            meter.create_observable_counter(name, [self._counted(field)], unit, meaning)
        meter.create_observable_up_down_counter(
            "milepost.lanes.held", [self._counted("lanes")], "{lane}", "Lanes that are held here."
        )
        meter.create_observable_counter(
            "messaging.client.consumed.messages", [self._consumed], "{message}", "Messages given to handlers."
        )
        meter.create_observable_up_down_counter(
            "milepost.messages.in_flight", [self._in_flight], "{message}", "Messages that handlers have now."
        )

    def _observe_standing(self, meter: Meter) -> None:
        meter.create_observable_gauge(
            "milepost.lag.positions",
            [self._standing("lag_positions")],
            "{position}",
            "Positions up to the horizon that were not passed.",
        )
        meter.create_observable_gauge(
            "milepost.lag.time",
            [self._standing("lag_seconds")],
            "s",
            "The age of the first message that was not passed.",
        )
        meter.create_observable_gauge(
            "milepost.log.horizon.held.time",
            [self._held],
            "s",
            "The age of the transaction that holds the horizon back.",
        )
        meter.create_observable_gauge(
            "milepost.lanes.stopped",
            [self._stopped],
            "{lane}",
            "Lanes that read no further, since a limit of rows is reached.",
        )
        meter.create_observable_gauge(
            "milepost.deliveries", [self._deliveries], "{message}", "Messages that need attention of their own."
        )

    def _counted(self, field: str) -> Observe:
        value = attrgetter(field)
        return lambda _: [Observation(value(one), _attributes(of)) for of, one in self._figures()]

    def _figures(self) -> Iterable[tuple[Of, Figures]]:
        return summed(chain.from_iterable(counting.figures() for _, counting, _ in self._programs)).items()

    def _consumed(self, _: CallbackOptions) -> list[Observation]:
        with self._lock:
            begun = dict(self._begun)
        process = {names.OPERATION_NAME: "process"}
        return [Observation(count, {**_attributes(of), **process}) for of, count in begun.items()]

    def _in_flight(self, _: CallbackOptions) -> list[Observation]:
        with self._lock:
            in_flight = {of: count - self._ended[of] for of, count in self._begun.items()}
        return [Observation(count, _attributes(of)) for of, count in in_flight.items()]

    def _standing(self, field: str) -> Observe:
        value = attrgetter(field)
        return lambda _: [Observation(value(one), _attributes(of)) for of, one in self._subscriptions()]

    def _stopped(self, _: CallbackOptions) -> Iterator[Observation]:
        for of, one in self._subscriptions():
            if one.stopped_lanes:
                why = {names.LIMIT: one.stopped_limit, names.CAUSE: one.stopped_cause}
                yield Observation(one.stopped_lanes, {**_attributes(of), **why})

    def _deliveries(self, _: CallbackOptions) -> Iterator[Observation]:
        for of, one in self._subscriptions():
            for state in _STATES:
                yield Observation(getattr(one, state), {**_attributes(of), names.STATE: state})

    def _held(self, options: CallbackOptions) -> Iterator[Observation]:
        for group, _, lookout in self._programs:
            outlook = lookout.now()
            if outlook is not None and outlook.log.held_by:
                who = {names.HOLDER: outlook.log.held_by, names.APPLICATION: outlook.log.application}
                yield Observation(outlook.log.held_for, {**names.MILEPOST, names.GROUP: group, **who})

    def _subscriptions(self) -> Iterator[tuple[Of, SubscriptionOutlook]]:
        for group, _, lookout in self._programs:
            outlook = lookout.now()
            if outlook is not None:
                yield from (((group, one.subscription), one) for one in outlook.subscriptions)


def _attributes(of: Of) -> dict[str, Any]:
    group, subscription = of
    return {**names.MILEPOST, names.GROUP: group, names.SUBSCRIPTION: subscription}


def _with_error(attributes: dict[str, Any], error: BaseException | None) -> dict[str, Any]:
    return attributes if error is None else {**attributes, names.ERROR: names.error_type(error)}
