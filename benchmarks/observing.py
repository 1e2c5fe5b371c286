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
from benchmarks.contest import Scores, Turn, contest
from benchmarks.draining import drain_log, drained
from benchmarks.handlers import BATCH, Declare
from benchmarks.logs import Log
from benchmarks.results import Result
from milepost import Milepost
from milepost.contrib import opentelemetry, prometheus
from milepost.engine.observe.events import Handled, HandledSeveral

ROUNDS = 16
"""How many times the rounds of a drain, where what is looked for is a few per cent."""
GOAL = 0.95
"""What the drain has to reach of its rate with nobody looking."""

NOBODY = "nobody"
LISTENER = "a listener"
COUNTER = "a listener that counts"
PROMETHEUS = "prometheus"
UNSAMPLED = "opentelemetry, not sampled"
SAMPLED = "opentelemetry, sampled"

Look = Callable[[Milepost], None]


def measure(bench: Bench) -> list[Result]:
    """With one message a call, where each is seen by itself, and with batches."""
    one, batches = "one message a call", f"batches of {BATCH}"
    many, few = ROUNDS * bench.sizes.drain_rounds, bench.sizes.drain_rounds
    with drain_log(bench, bench.url, "observe") as log, _tracing(ALWAYS_OFF) as off, _tracing(ALWAYS_ON) as on:
        case = partial(_case, bench, log)
        hooks: dict[str, Look] = {LISTENER: _listen, COUNTER: _count, PROMETHEUS: _collect}
        # Many times slower: beside them a few rounds are enough, and the turns of the others stay close together.
        tracing: dict[str, Look] = {UNSAMPLED: off, SAMPLED: on}
        return [
            *case(hooks, one, handlers.one_a_call, rounds=many, goal=GOAL),
            *case(tracing, f"{one}, traced", handlers.one_a_call, rounds=few),
            *case(hooks, batches, handlers.batches, rounds=many, goal=GOAL),
            *case(tracing, f"{batches}, traced", handlers.batches, rounds=few),
        ]


def _case(
    bench: Bench,
    log: Log,
    looks: Mapping[str, Look],
    case: str,
    declare: Declare,
    *,
    rounds: int,
    goal: float | None = None,
) -> list[Result]:
    """The rates, and what a message takes of a processor: that depends less on what else the machine does."""
    work, processor_work = f"observe: {case}", f"observe: {case}, processor time"
    processor = Scores(unit="µs/message", fewer_is_better=True)

    def turn(name: str, look: Look) -> float:
        found = drained(bench, log, _seen(declare, look))
        processor.add(name, found.processor)
        return found.rate

    turns: dict[str, Turn] = {
        name: partial(turn, name, look) for name, look in ((NOBODY, _nobody), *looks.items())
    }
    rates = contest(bench, work, turns, rounds)
    versions = {name: version(name) for name in ("opentelemetry-sdk", "prometheus-client")}
    return [
        *(rates.result(work, name, of=NOBODY, at_least=goal, versions=versions) for name in looks),
        rates.result(work, NOBODY),
        *(processor.result(processor_work, name, of=NOBODY, versions=versions) for name in looks),
        processor.result(processor_work, NOBODY),
    ]


def _seen(declare: Declare, look: Look) -> Declare:
    def declared(mp: Milepost) -> None:
        declare(mp)
        look(mp)

    return declared


def _nobody(mp: Milepost) -> None: ...


def _listen(mp: Milepost) -> None:
    @mp.on_event
    def listen(event: Handled) -> None:
        pass


def _count(mp: Milepost) -> None:
    @mp.on_event
    def count(event: HandledSeveral) -> None:
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
