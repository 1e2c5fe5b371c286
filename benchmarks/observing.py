"""What it costs to look: a backlog is drained while nobody does, and while each of those does who can."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler

from benchmarks import handlers
from benchmarks.bench import Bench
from benchmarks.contest import Turn, contest
from benchmarks.draining import drain_log, rate
from benchmarks.handlers import BATCH, Declare
from benchmarks.logs import Log
from benchmarks.results import Result
from milepost import Milepost
from milepost.contrib import opentelemetry, prometheus
from milepost.events import Handled

ROUNDS = 4
"""How many times the rounds of a drain: what is looked for is a few per cent."""
GOAL = 0.95
"""What the drain has to reach of its rate with nobody looking."""

NOBODY = "nobody"
LISTENER = "a listener"
PROMETHEUS = "prometheus"
UNSAMPLED = "opentelemetry, not sampled"
SAMPLED = "opentelemetry, sampled"

Look = Callable[[Milepost], None]


def measure(bench: Bench) -> list[Result]:
    """With one message a call, where each is seen by itself, and with batches."""
    with drain_log(bench, bench.url, "observe") as log, _tracing(ALWAYS_OFF) as off, _tracing(ALWAYS_ON) as on:
        looks: dict[str, Look] = {
            NOBODY: lambda mp: None,
            LISTENER: _listen,
            PROMETHEUS: _collect,
            UNSAMPLED: off,
            SAMPLED: on,
        }
        return [
            *_case(bench, log, looks, "observe: one message a call", handlers.one_a_call),
            *_case(bench, log, looks, f"observe: batches of {BATCH}", handlers.batches),
        ]


def _case(bench: Bench, log: Log, looks: Mapping[str, Look], work: str, declare: Declare) -> list[Result]:
    turns: dict[str, Turn] = {
        name: partial(rate, bench, log, _seen(declare, look)) for name, look in looks.items()
    }
    scores = contest(bench, work, turns, ROUNDS * bench.sizes.drain_rounds)
    versions = {name: version(name) for name in ("opentelemetry-sdk", "prometheus-client")}
    return [
        scores.result(work, LISTENER, of=NOBODY, at_least=GOAL),
        scores.result(work, PROMETHEUS, of=NOBODY, versions=versions),
        scores.result(work, UNSAMPLED, of=NOBODY, versions=versions),
        scores.result(work, SAMPLED, of=NOBODY, versions=versions),
        scores.result(work, NOBODY),
    ]


def _seen(declare: Declare, look: Look) -> Declare:
    def declared(mp: Milepost) -> None:
        declare(mp)
        look(mp)

    return declared


def _listen(mp: Milepost) -> None:
    @mp.on_event
    def listen(event: Handled) -> None:
        pass


def _collect(mp: Milepost) -> None:
    prometheus.Metrics().add(mp)


@contextmanager
def _tracing(sampler: Sampler) -> Iterator[Look]:
    tracer_provider = TracerProvider(sampler=sampler)
    tracer_provider.add_span_processor(BatchSpanProcessor(_Nowhere()))
    meter_provider = MeterProvider([InMemoryMetricReader()])
    yield partial(opentelemetry.instrument, tracer_provider=tracer_provider, meter_provider=meter_provider)
    tracer_provider.shutdown()
    meter_provider.shutdown()


class _Nowhere(SpanExporter):
    """Takes all spans, and has nowhere to send them."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS
