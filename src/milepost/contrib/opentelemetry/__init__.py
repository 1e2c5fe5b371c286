"""OpenTelemetry: spans of appends and of calls of handlers, joined to one trace through the log, and metrics.

Names are those of the semantic conventions for messaging where there are any.
"""

from importlib.metadata import version
from weakref import WeakKeyDictionary, WeakSet

from milepost.app import Milepost

try:
    from opentelemetry.metrics import MeterProvider, get_meter_provider
    from opentelemetry.trace import TracerProvider, get_tracer
except ImportError as error:
    raise ImportError(
        'milepost.contrib.opentelemetry needs OpenTelemetry: pip install "milepost[opentelemetry]"'
    ) from error

from milepost.contrib.opentelemetry.attributes import of_server
from milepost.contrib.opentelemetry.measuring import Measuring
from milepost.contrib.opentelemetry.tracing import Tracing

__all__ = ["instrument"]

SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
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
    if mp in _instrumented:
        return
    _instrumented.add(mp)
    about = ("milepost", version("milepost"))
    tracer = get_tracer(*about, tracer_provider, SCHEMA)
    provider = meter_provider or get_meter_provider()
    if provider not in _measuring:
        _measuring[provider] = Measuring(provider.get_meter(*about, SCHEMA))
    _measuring[provider].add(mp)
    mp.instrument(Tracing(tracer, _measuring[provider], of_server(mp.settings["url"].value)))


_instrumented: WeakSet[Milepost] = WeakSet()
_measuring: WeakKeyDictionary[MeterProvider, Measuring] = WeakKeyDictionary()
