"""Telemetry that stays in memory, for tests to look at."""

from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler
from opentelemetry.trace import SpanContext

from milepost import Milepost
from milepost.contrib.opentelemetry import instrument


class Telemetry:
    """Providers of a process, and what they were given."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self.tracer_provider = TracerProvider(sampler=sampler)
        self._exporter = InMemorySpanExporter()
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.tracer_provider.get_tracer("test")
        self._reader = InMemoryMetricReader()
        self.meter_provider = MeterProvider([self._reader])

    def instrument(self, mp: Milepost) -> Milepost:
        instrument(mp, tracer_provider=self.tracer_provider, meter_provider=self.meter_provider)
        return mp

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        """Those that have ended, in that order."""
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span

    def metrics(self) -> dict[str, list[Any]]:
        """The points of each metric, collected now."""
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def value(self, name: str, **attributes: object) -> Any:
        """The value of the only point of a metric that has these attributes, with `_` for `.`."""
        wanted = {(key.replace("__", "."), value) for key, value in attributes.items()}
        [point] = [each for each in self.metrics()[name] if wanted <= set(each.attributes.items())]
        return point.value if hasattr(point, "value") else point


def context_of(span: ReadableSpan) -> SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    """Whether a span is a child of another, in the same trace."""
    return (
        span.parent is not None
        and span.parent.span_id == context_of(parent).span_id
        and context_of(span).trace_id == context_of(parent).trace_id
    )
