"""Spans of appends and of calls of handlers, and the trace's context in the messages between them.

The context is in the metadata of a message as W3C's `traceparent` and `tracestate`, whatever propagators the
process uses for HTTP: what is stored has one form.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any

from opentelemetry.context import Context as TraceContext
from opentelemetry.context import attach, detach
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from milepost.contrib.opentelemetry import attributes as names
from milepost.contrib.opentelemetry.measuring import Measuring
from milepost.engine.context import Context
from milepost.engine.outcomes import Park, RetryLater, Skip
from milepost.log.instrument import Payloads
from milepost.log.message import Appended, Message, NewMessage
from milepost.names import category_of

MOST_LINKS = 128
"""The most messages of a batch that its span has links to: as many as the SDK keeps."""
MAX_CONTEXT = 512
"""Characters of `traceparent` and of `tracestate`; a longer one is none. W3C has nobody pass on more."""

_DECISIONS = (Skip, Park, RetryLater)
"""What a handler may decide, which is no error."""
_NOWHERE = TraceContext()

_w3c = TraceContextTextMapPropagator()


class Tracing:
    """The instrument that makes spans."""

    def __init__(self, tracer: Tracer, measuring: Measuring, server: dict[str, Any]) -> None:
        self._tracer = tracer
        self._measuring = measuring
        self._append = {**names.APPEND, **server}
        self._process = {**names.PROCESS, **server}

    def appending(
        self, payloads: Payloads, carrier: dict[str, str], *, sends: bool
    ) -> Callable[[Sequence[Appended], BaseException | None], None]:
        """A producer's span, current while the append is under way; its context goes along with the messages."""
        begun = monotonic()
        categories = {category_of(str(stream)) for stream, _ in payloads}
        each = [(str(stream), payload) for stream, several in payloads for payload in several]
        attributes = self._append | _appending(each, categories)
        span = self._tracer.start_span(
            _name("append", categories), None, SpanKind.PRODUCER, attributes, _links_given(each)
        )
        context = set_span_in_context(span)
        _w3c.inject(carrier, context)
        token = attach(context)

        def end(appended: Sequence[Appended], error: BaseException | None) -> None:
            try:
                _end(span, error, _appended(appended) if len(each) == 1 else {})
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
                _end(span, error, {})
            finally:
                detach(token)
                seconds = monotonic() - begun
                self._measuring.ended(of, len(messages), seconds, _failure(error))

        return end

    def _single(self, message: Message[Any], context: Context) -> tuple[Span, TraceContext]:
        metadata = message.metadata
        parent, origin = _origin(metadata)
        category = category_of(message.stream)
        attributes = {**self._process, **_processing(context), names.DESTINATION: category}
        links = [Link(origin)] if origin else None
        span = self._tracer.start_span(f"process {category}", parent, SpanKind.CONSUMER, attributes, links)
        if span.is_recording():
            span.set_attributes({**names.of_message(message, metadata), names.ATTEMPT: context.attempt})
        return span, parent

    def _batch(self, messages: Sequence[Message[Any]], context: Context) -> tuple[Span, TraceContext]:
        categories = {category_of(message.stream) for message in messages}
        attributes = {**self._process, **_processing(context), names.BATCH: len(messages)}
        if len(categories) == 1:
            attributes[names.DESTINATION] = next(iter(categories))
        links = _links_of(messages)
        name = _name("process", categories)
        return self._tracer.start_span(name, _NOWHERE, SpanKind.CONSUMER, attributes, links), _NOWHERE


def _processing(context: Context) -> dict[str, Any]:
    found: dict[str, Any] = {names.SUBSCRIPTION: context.subscription, names.GROUP: context.group}
    return {**found, names.REPLAY: True} if context.replay else found


def _appending(each: Sequence[tuple[str, Any]], categories: set[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if len(categories) == 1:
        found[names.DESTINATION] = next(iter(categories))
    if len(each) == 1:
        return found | names.of_new_message(*each[0])
    return {**found, names.BATCH: len(each)}


def _appended(appended: Sequence[Appended]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in appended:
        found |= {names.POSITION: one.position, names.VERSION: one.version}
        if one.duplicate:
            found[names.DUPLICATE] = True
    return found


def _name(operation: str, categories: set[str]) -> str:
    return f"{operation} {next(iter(categories))}" if len(categories) == 1 else operation


def _origin(metadata: Mapping[str, Any]) -> tuple[TraceContext, SpanContext | None]:
    """The context in which a message was made, and its span; nothing, if it has none that can be read."""
    found = {name: metadata.get(name) for name in _w3c.fields}
    # Anybody who may append writes it, and some versions of the propagator take hours for a long one.
    carrier = {
        name: value for name, value in found.items() if isinstance(value, str) and len(value) <= MAX_CONTEXT
    }
    if "traceparent" not in carrier:
        return _NOWHERE, None
    context = _w3c.extract(carrier, _NOWHERE)
    origin = get_current_span(context).get_span_context()
    return (context, origin) if origin.is_valid else (_NOWHERE, None)


def _links_of(messages: Sequence[Message[Any]]) -> list[Link]:
    links = []
    for message in messages[:MOST_LINKS]:
        metadata = message.metadata
        _, origin = _origin(metadata)
        if origin:
            links.append(Link(origin, names.of_message(message, metadata)))
    return links


def _links_given(each: Iterable[tuple[str, Any]]) -> list[Link] | None:
    """To contexts that messages were given by their maker, and keep."""
    given = [payload.metadata for _, payload in each if isinstance(payload, NewMessage) and payload.metadata]
    origins = [_origin(metadata)[1] for metadata in given[:MOST_LINKS]]
    return [Link(origin) for origin in origins if origin]


def _failure(error: BaseException | None) -> BaseException | None:
    """The error, unless it is what a handler decides."""
    return None if isinstance(error, _DECISIONS) else error


def _end(span: Span, error: BaseException | None, found: dict[str, Any]) -> None:
    if not span.is_recording():
        return
    try:
        span.set_attributes(found)
        if isinstance(error, _DECISIONS):
            span.set_attribute(names.OUTCOME, _outcome(error))
        elif error is not None:
            span.set_attribute(names.ERROR, names.error_type(error))
            span.record_exception(error)
            span.set_status(StatusCode.ERROR, str(error))
    finally:
        span.end()


def _outcome(decision: Skip | Park | RetryLater) -> str:
    if isinstance(decision, Skip):
        return "skipped"
    return "parked" if isinstance(decision, Park) else "retried"
