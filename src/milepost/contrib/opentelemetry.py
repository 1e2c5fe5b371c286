"""OpenTelemetry: spans of appends and of calls of handlers, joined to one trace through the log, and metrics.

Names are those of the semantic conventions for messaging where there are any. A trace's context is in the metadata
of
a message as W3C's `traceparent` and `tracestate`, whatever propagators the process uses for HTTP: what is stored
has
one form.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from itertools import chain
from operator import attrgetter
from threading import Lock
from time import monotonic
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary, WeakSet

try:
    from opentelemetry.context import Context as TraceContext
    from opentelemetry.context import attach, detach
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter_provider
    from opentelemetry.trace import (
        Link,
        Span,
        SpanContext,
        SpanKind,
        StatusCode,
        Tracer,
        TracerProvider,
        get_current_span,
        get_tracer,
        set_span_in_context,
    )
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError(
        'milepost.contrib.opentelemetry needs OpenTelemetry: pip install "milepost[opentelemetry]"'
    ) from error

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from milepost import embedded
from milepost.app import Milepost
from milepost.contrib.gauges import GaugeReader, SubscriptionGauges
from milepost.engine.declare.context import Context
from milepost.engine.declare.outcomes import Park, RetryLater, Skip
from milepost.engine.observe.counters import (
    HISTOGRAM_BOUNDS_SECONDS,
    EventCounter,
    GroupAndName,
    SubscriptionCounters,
    sum_by_subscription,
)
from milepost.log.append import AppendPayloads
from milepost.log.message import Appended, Message, NewMessage, id_in
from milepost.names import category_of

ATTR_SYSTEM: Final = "messaging.system"
ATTR_OPERATION_NAME: Final = "messaging.operation.name"
ATTR_OPERATION_TYPE: Final = "messaging.operation.type"
ATTR_DESTINATION: Final = "messaging.destination.name"
ATTR_SUBSCRIPTION: Final = "messaging.destination.subscription.name"
ATTR_GROUP: Final = "messaging.consumer.group.name"
ATTR_BATCH: Final = "messaging.batch.message_count"
ATTR_MESSAGE_ID: Final = "messaging.message.id"
ATTR_CONVERSATION: Final = "messaging.message.conversation_id"
ATTR_SIZE: Final = "messaging.message.envelope.size"
ATTR_ERROR: Final = "error.type"
ATTR_SERVER: Final = "server.address"
ATTR_PORT: Final = "server.port"

ATTR_TYPE: Final = "messaging.milepost.message.type"
ATTR_STREAM: Final = "messaging.milepost.message.stream"
ATTR_VERSION: Final = "messaging.milepost.message.version"
ATTR_POSITION: Final = "messaging.milepost.message.position"
ATTR_ATTEMPT: Final = "messaging.milepost.message.attempt"
ATTR_REPLAY: Final = "messaging.milepost.message.replay"
ATTR_DUPLICATE: Final = "messaging.milepost.duplicate"
ATTR_OUTCOME: Final = "messaging.milepost.outcome"
ATTR_STATE: Final = "messaging.milepost.delivery.state"
ATTR_LIMIT: Final = "messaging.milepost.limit"
ATTR_CAUSE: Final = "messaging.milepost.limit.cause"
ATTR_HOLDER: Final = "messaging.milepost.horizon.holder"
ATTR_APPLICATION: Final = "messaging.milepost.horizon.application"

BASE_ATTRIBUTES: Final = {ATTR_SYSTEM: "milepost"}
APPEND_ATTRIBUTES: Final = {**BASE_ATTRIBUTES, ATTR_OPERATION_NAME: "append", ATTR_OPERATION_TYPE: "send"}
PROCESS_ATTRIBUTES: Final = {**BASE_ATTRIBUTES, ATTR_OPERATION_NAME: "process", ATTR_OPERATION_TYPE: "process"}


def server_attributes(url: str | None) -> dict[str, Any]:
    """Where the log is, if its address names one machine."""
    found: dict[str, Any] = {}
    with suppress(ProgrammingError, ValueError):
        known = {} if url is None or embedded.is_embedded(url) else conninfo_to_dict(url)
        if host := known.get("host"):
            found[ATTR_SERVER] = str(host)
        if port := known.get("port"):
            found[ATTR_PORT] = int(port)
    return {} if "," in found.get(ATTR_SERVER, ",") else found


def message_attributes(message: Message[Any], metadata: dict[str, Any]) -> dict[str, Any]:
    """What describes a message that was read."""
    found = {
        ATTR_MESSAGE_ID: str(message.id),
        ATTR_SIZE: message.size,
        ATTR_TYPE: message.type,
        ATTR_STREAM: message.stream,
        ATTR_VERSION: message.version,
        ATTR_POSITION: message.position,
    }
    correlation = id_in(metadata, "correlation_id")
    return {**found, ATTR_CONVERSATION: correlation} if isinstance(correlation, str) else found


def new_message_attributes(stream: str, payload: Any) -> dict[str, Any]:
    """What describes a message that is to be appended."""
    found = {ATTR_STREAM: stream}
    if isinstance(payload, NewMessage):
        found[ATTR_TYPE] = payload.type
        if payload.id is not None:
            found[ATTR_MESSAGE_ID] = str(payload.id)
    return found


def error_type(error: BaseException) -> str:
    """The class of an error, as it is imported."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


Observe: TypeAlias = Callable[[CallbackOptions], Iterable[Observation]]

_APPEND_BOUNDS_SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
)

_COUNTERS = {
    "milepost.messages.handled": ("handled", "{message}", "Messages that were handled."),
    "milepost.attempts.failed": ("failed", "{attempt}", "Attempts to handle a message that failed."),
    "milepost.messages.retried": ("retried", "{message}", "How often a message was put aside to be tried again."),
    "milepost.messages.parked": ("parked", "{message}", "Messages that were given up until a person decides."),
    "milepost.messages.skipped": ("skipped", "{message}", "Messages that a handler did not want."),
    "milepost.lanes.lost": ("lost", "{lane}", "Lanes that were lost instead of released."),
}
_DELIVERY_STATES = ("retrying", "waiting", "parked", "unrouted")


class OtelMetrics:
    """Measures what a process does with its programs. Most of it is asked when somebody collects."""

    def __init__(self, meter: Meter) -> None:
        self._programs: list[tuple[str, EventCounter, GaugeReader]] = []
        self._lock = Lock()
        self._begun: Counter[GroupAndName] = Counter()
        self._ended: Counter[GroupAndName] = Counter()
        self._duration = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "How long calls of handlers took.",
            explicit_bucket_boundaries_advisory=HISTOGRAM_BOUNDS_SECONDS,
        )
        self._append_duration = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "How long appends took.",
            explicit_bucket_boundaries_advisory=_APPEND_BOUNDS_SECONDS,
        )
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Messages appended.")
        self._observe_counts(meter)
        self._observe_standing(meter)

    def add(self, mp: Milepost) -> None:
        """One more program. A process has one set of instruments, however many programs it has."""
        self._programs.append((mp.settings["group"].value, EventCounter(mp.on_event), GaugeReader(mp)))

    # Told by tracing, from any thread

    def begun(self, of: GroupAndName, count: int) -> None:
        """A handler is called for so many messages."""
        with self._lock:
            self._begun[of] += count

    def ended(self, of: GroupAndName, count: int, seconds: float, error: BaseException | None) -> None:
        """That call has ended."""
        with self._lock:
            self._ended[of] += count
        # Few attributes: the SDK takes more than a microsecond for each, at each call.
        attributes = {**_subscription_attributes(of), ATTR_OPERATION_NAME: "process"}
        self._duration.record(seconds, _with_error(attributes, error))

    def appended(self, categories: set[str], count: int, seconds: float, error: BaseException | None) -> None:
        """An append has ended."""
        attributes: dict[str, Any] = dict(APPEND_ATTRIBUTES)
        if len(categories) == 1:
            attributes[ATTR_DESTINATION] = next(iter(categories))
        attributes = _with_error(attributes, error)
        self._sent.add(count, attributes)
        self._append_duration.record(seconds, attributes)

    # Asked by who collects

    def _observe_counts(self, meter: Meter) -> None:
        for name, (field, unit, meaning) in _COUNTERS.items():
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
        return lambda _: [Observation(value(one), _subscription_attributes(of)) for of, one in self._figures()]

    def _figures(self) -> Iterable[tuple[GroupAndName, SubscriptionCounters]]:
        return sum_by_subscription(
            chain.from_iterable(counting.figures() for _, counting, _ in self._programs)
        ).items()

    def _consumed(self, _: CallbackOptions) -> list[Observation]:
        with self._lock:
            begun = dict(self._begun)
        process = {ATTR_OPERATION_NAME: "process"}
        return [Observation(count, {**_subscription_attributes(of), **process}) for of, count in begun.items()]

    def _in_flight(self, _: CallbackOptions) -> list[Observation]:
        with self._lock:
            in_flight = {of: count - self._ended[of] for of, count in self._begun.items()}
        return [Observation(count, _subscription_attributes(of)) for of, count in in_flight.items()]

    def _standing(self, field: str) -> Observe:
        value = attrgetter(field)
        return lambda _: [
            Observation(value(one), _subscription_attributes(of)) for of, one in self._subscriptions()
        ]

    def _stopped(self, _: CallbackOptions) -> Iterator[Observation]:
        for of, one in self._subscriptions():
            if one.stopped_lanes:
                why = {ATTR_LIMIT: one.stopped_limit, ATTR_CAUSE: one.stopped_cause}
                yield Observation(one.stopped_lanes, {**_subscription_attributes(of), **why})

    def _deliveries(self, _: CallbackOptions) -> Iterator[Observation]:
        for of, one in self._subscriptions():
            for state in _DELIVERY_STATES:
                yield Observation(getattr(one, state), {**_subscription_attributes(of), ATTR_STATE: state})

    def _held(self, options: CallbackOptions) -> Iterator[Observation]:
        for group, _, lookout in self._programs:
            outlook = lookout.now()
            if outlook is not None and outlook.log.held_by:
                who = {ATTR_HOLDER: outlook.log.held_by, ATTR_APPLICATION: outlook.log.application}
                yield Observation(outlook.log.held_for, {**BASE_ATTRIBUTES, ATTR_GROUP: group, **who})

    def _subscriptions(self) -> Iterator[tuple[GroupAndName, SubscriptionGauges]]:
        for group, _, lookout in self._programs:
            outlook = lookout.now()
            if outlook is not None:
                yield from (((group, one.subscription), one) for one in outlook.subscriptions)


def _subscription_attributes(of: GroupAndName) -> dict[str, Any]:
    group, subscription = of
    return {**BASE_ATTRIBUTES, ATTR_GROUP: group, ATTR_SUBSCRIPTION: subscription}


def _with_error(attributes: dict[str, Any], error: BaseException | None) -> dict[str, Any]:
    return attributes if error is None else {**attributes, ATTR_ERROR: error_type(error)}


MAX_LINKS = 128
"""The most messages of a batch that its span has links to: as many as the SDK keeps."""
MAX_CONTEXT_CHARACTERS = 512
"""Characters of `traceparent` and of `tracestate`; a longer one is none. W3C has nobody pass on more."""

_DECISIONS = (Skip, Park, RetryLater)
"""What a handler may decide, which is no error."""
_NO_CONTEXT = TraceContext()

_w3c = TraceContextTextMapPropagator()


class OtelTracing:
    """The instrument that makes spans."""

    def __init__(self, tracer: Tracer, measuring: OtelMetrics, server: dict[str, Any]) -> None:
        self._tracer = tracer
        self._measuring = measuring
        self._append = {**APPEND_ATTRIBUTES, **server}
        self._process = {**PROCESS_ATTRIBUTES, **server}

    def appending(
        self, payloads: AppendPayloads, carrier: dict[str, str], *, sends: bool
    ) -> Callable[[Sequence[Appended], BaseException | None], None]:
        """A producer's span, current while the append is under way; its context goes along with the messages."""
        begun = monotonic()
        categories = {category_of(str(stream)) for stream, _ in payloads}
        each = [(str(stream), payload) for stream, several in payloads for payload in several]
        attributes = self._append | _append_attributes(each, categories)
        span = self._tracer.start_span(
            _span_name("append", categories), None, SpanKind.PRODUCER, attributes, _given_links(each)
        )
        context = set_span_in_context(span)
        _w3c.inject(carrier, context)
        token = attach(context)

        def end(appended: Sequence[Appended], error: BaseException | None) -> None:
            try:
                _end_span(span, error, _appended_attributes(appended) if len(each) == 1 else {})
            finally:
                detach(token)
            if sends:
                self._measuring.appended(categories, len(each), monotonic() - begun, error)

        return end

    def handling(
        self, messages: Sequence[Message[Any]], context: Context, *, batch: bool
    ) -> Callable[[BaseException | None], None]:
        """A consumer's span, current while the handler runs.

        That of one message continues the trace in which it was appended. That of a batch begins a trace, with
        links to those of its messages.
        """
        begun = monotonic()
        span, parent = self._batch(messages, context) if batch else self._single(messages[0], context)
        of = (context.group, context.subscription)
        self._measuring.begun(of, len(messages))
        token = attach(set_span_in_context(span, parent))

        def end(error: BaseException | None) -> None:
            try:
                _end_span(span, error, {})
            finally:
                detach(token)
                seconds = monotonic() - begun
                self._measuring.ended(of, len(messages), seconds, _handler_failure(error))

        return end

    def _single(self, message: Message[Any], context: Context) -> tuple[Span, TraceContext]:
        metadata = message.metadata
        parent, origin = _trace_origin(metadata)
        category = category_of(message.stream)
        attributes = {**self._process, **_process_attributes(context), ATTR_DESTINATION: category}
        links = [Link(origin)] if origin else None
        span = self._tracer.start_span(f"process {category}", parent, SpanKind.CONSUMER, attributes, links)
        if span.is_recording():
            span.set_attributes({**message_attributes(message, metadata), ATTR_ATTEMPT: context.attempt})
        return span, parent

    def _batch(self, messages: Sequence[Message[Any]], context: Context) -> tuple[Span, TraceContext]:
        categories = {category_of(message.stream) for message in messages}
        attributes = {**self._process, **_process_attributes(context), ATTR_BATCH: len(messages)}
        if len(categories) == 1:
            attributes[ATTR_DESTINATION] = next(iter(categories))
        links = _message_links(messages)
        name = _span_name("process", categories)
        return self._tracer.start_span(name, _NO_CONTEXT, SpanKind.CONSUMER, attributes, links), _NO_CONTEXT


def _process_attributes(context: Context) -> dict[str, Any]:
    found: dict[str, Any] = {ATTR_SUBSCRIPTION: context.subscription, ATTR_GROUP: context.group}
    return {**found, ATTR_REPLAY: True} if context.replay else found


def _append_attributes(each: Sequence[tuple[str, Any]], categories: set[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if len(categories) == 1:
        found[ATTR_DESTINATION] = next(iter(categories))
    if len(each) == 1:
        return found | new_message_attributes(*each[0])
    return {**found, ATTR_BATCH: len(each)}


def _appended_attributes(appended: Sequence[Appended]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in appended:
        found |= {ATTR_POSITION: one.position, ATTR_VERSION: one.version}
        if one.duplicate:
            found[ATTR_DUPLICATE] = True
    return found


def _span_name(operation: str, categories: set[str]) -> str:
    return f"{operation} {next(iter(categories))}" if len(categories) == 1 else operation


def _trace_origin(metadata: Mapping[str, Any]) -> tuple[TraceContext, SpanContext | None]:
    """The context in which a message was made, and its span; nothing, if it has none that can be read."""
    found = {name: metadata.get(name) for name in _w3c.fields}
    # Anybody who may append writes it, and some versions of the propagator take hours for a long one.
    carrier = {
        name: value
        for name, value in found.items()
        if isinstance(value, str) and len(value) <= MAX_CONTEXT_CHARACTERS
    }
    if "traceparent" not in carrier:
        return _NO_CONTEXT, None
    context = _w3c.extract(carrier, _NO_CONTEXT)
    origin = get_current_span(context).get_span_context()
    return (context, origin) if origin.is_valid else (_NO_CONTEXT, None)


def _message_links(messages: Sequence[Message[Any]]) -> list[Link]:
    links = []
    for message in messages[:MAX_LINKS]:
        metadata = message.metadata
        _, origin = _trace_origin(metadata)
        if origin:
            links.append(Link(origin, message_attributes(message, metadata)))
    return links


def _given_links(each: Iterable[tuple[str, Any]]) -> list[Link] | None:
    """To contexts that messages were given by their maker, and keep."""
    given = [payload.metadata for _, payload in each if isinstance(payload, NewMessage) and payload.metadata]
    origins = [_trace_origin(metadata)[1] for metadata in given[:MAX_LINKS]]
    return [Link(origin) for origin in origins if origin]


def _handler_failure(error: BaseException | None) -> BaseException | None:
    """The error, unless it is what a handler decides."""
    return None if isinstance(error, _DECISIONS) else error


def _end_span(span: Span, error: BaseException | None, found: dict[str, Any]) -> None:
    if not span.is_recording():
        return
    try:
        span.set_attributes(found)
        if isinstance(error, _DECISIONS):
            span.set_attribute(ATTR_OUTCOME, _outcome_text(error))
        elif error is not None:
            span.set_attribute(ATTR_ERROR, error_type(error))
            span.record_exception(error)
            span.set_status(StatusCode.ERROR, str(error))
    finally:
        span.end()


def _outcome_text(decision: Skip | Park | RetryLater) -> str:
    if isinstance(decision, Skip):
        return "skipped"
    return "parked" if isinstance(decision, Park) else "retried"


__all__ = ["instrument"]

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
"""The version of the conventions that names are from."""


def instrument(
    mp: Milepost, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> None:
    """Traces and measures what this process does with a program, from its next start on.

    Args:
        mp: The program. A second call for the same one changes nothing.
        tracer_provider: Who gets the spans. Defaults to the global one.
        meter_provider: Who gets the metrics. Defaults to the global one.
    """
    if mp in _instrumented_programs:
        return
    _instrumented_programs.add(mp)
    about = ("milepost", version("milepost"))
    tracer = get_tracer(*about, tracer_provider, SCHEMA_URL)
    provider = meter_provider or get_meter_provider()
    if provider not in _metrics_by_provider:
        _metrics_by_provider[provider] = OtelMetrics(provider.get_meter(*about, SCHEMA_URL))
    _metrics_by_provider[provider].add(mp)
    mp.instrument(OtelTracing(tracer, _metrics_by_provider[provider], server_attributes(mp.settings["url"].value)))


_instrumented_programs: WeakSet[Milepost] = WeakSet()
_metrics_by_provider: WeakKeyDictionary[MeterProvider, OtelMetrics] = WeakKeyDictionary()
