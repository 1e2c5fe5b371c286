"""Spans and metrics of real programs, by OpenTelemetry's SDK."""

import asyncio
import logging
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode, TraceFlags

from contrib.telemetry import Telemetry, context_of, is_child
from engine.consuming.taking import ack, orders, take
from milepost import Context, Message, Milepost, NewMessage, Park, Retry, RetryLater, Skip, Transaction
from milepost.engine.declare.handler import CallEnd
from milepost.log import append as instruments
from milepost.log.append import AppendEnd
from milepost.throttled_warnings import ThrottledWarnings
from support import MakeMilepost, qualified


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


@pytest.fixture
def mp(mp: Milepost, telemetry: Telemetry) -> Milepost:
    return telemetry.instrument(mp)


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test complained of does not keep another from complaining."""
    fresh = ThrottledWarnings(logging.getLogger("milepost.instruments"), "an instrument")
    monkeypatch.setattr(instruments.instrument_warnings, "warn", fresh.warn)


async def metadata_of(mp: Milepost, stream: str) -> list[dict[str, Any]]:
    return [message.metadata async for message in mp.read(stream)]


class TestAppends:
    async def test_a_message_carries_the_context_of_its_append(self, mp: Milepost, telemetry: Telemetry) -> None:
        with telemetry.tracer.start_as_current_span("request") as request:
            appended = await mp.append("order-42", NewMessage("placed", id="5f3a4c1e-0d3b-4c56-9f0e-2a1b9c8d7e6f"))
        span = telemetry.one("append order")
        assert is_child(span, telemetry.one("request"))
        assert span.kind is SpanKind.PRODUCER
        assert span.status.status_code is StatusCode.UNSET
        assert dict(span.attributes or {}) == {
            "messaging.system": "milepost",
            "messaging.operation.name": "append",
            "messaging.operation.type": "send",
            "messaging.destination.name": "order",
            "messaging.message.id": "5f3a4c1e-0d3b-4c56-9f0e-2a1b9c8d7e6f",
            "messaging.milepost.message.type": "placed",
            "messaging.milepost.message.stream": "order-42",
            "messaging.milepost.message.position": appended.position,
            "messaging.milepost.message.version": 1,
            **server(mp),
        }
        trace_id, span_id = request.get_span_context().trace_id, context_of(span).span_id
        [metadata] = await metadata_of(mp, "order-42")
        assert metadata.keys() == {"traceparent"}
        assert metadata["traceparent"].startswith(f"00-{trace_id:032x}-{span_id:016x}-")

    async def test_several_messages_share_one_span(self, mp: Milepost, telemetry: Telemetry) -> None:
        await mp.append("order-1", [NewMessage("placed"), NewMessage("paid")])
        await mp.append_many({"order-2": [NewMessage("placed")], "cart-1": [NewMessage("filled")]})
        one, many = telemetry.spans
        assert (one.name, (one.attributes or {})["messaging.batch.message_count"]) == ("append order", 2)
        assert (many.name, (many.attributes or {})["messaging.batch.message_count"]) == ("append", 2)
        assert "messaging.destination.name" not in (many.attributes or {})
        first, second = await metadata_of(mp, "order-1")
        assert first == second
        assert await metadata_of(mp, "order-2") == await metadata_of(mp, "cart-1") != [first]

    async def test_other_metadata_stays_and_a_context_that_was_given_is_kept(
        self, mp: Milepost, telemetry: Telemetry
    ) -> None:
        given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        await mp.append(
            "order-1",
            [
                NewMessage("placed", metadata={"correlation_id": "c1"}),
                NewMessage("placed", metadata={"traceparent": given, "user": 7}),
            ],
        )
        first, second = await metadata_of(mp, "order-1")
        assert first.keys() == {"correlation_id", "traceparent"}
        assert second == {"traceparent": given, "user": 7}
        [link] = telemetry.one("append order").links
        assert f"{link.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"

    async def test_an_append_that_fails(self, mp: Milepost, telemetry: Telemetry) -> None:
        with pytest.raises(Exception, match="is at version 0"):
            await mp.append("order-1", NewMessage("placed"), expected=7)
        span = telemetry.one("append order")
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes or {})["error.type"] == "milepost.errors.WrongVersion"
        assert [event.name for event in span.events] == ["exception"]
        sent = telemetry.value("messaging.client.sent.messages", error__type="milepost.errors.WrongVersion")
        assert sent == 1

    async def test_what_is_no_message_is_refused_as_ever(
        self, mp: Milepost, telemetry: Telemetry, caplog: pytest.LogCaptureFixture
    ) -> None:
        for stream, message in (([], NewMessage("placed")), (None, NewMessage("placed")), ("order-1", 3)):
            with pytest.raises(Exception, match="is wanted|registered class"):
                await mp.append(stream, message)  # type: ignore[arg-type]
        assert caplog.records == []

    async def test_a_repeated_append_is_a_duplicate_in_another_trace(
        self, mp: Milepost, telemetry: Telemetry
    ) -> None:
        message = NewMessage("placed", id="5f3a4c1e-0d3b-4c56-9f0e-2a1b9c8d7e6f")
        assert not (await mp.append("order-1", message)).duplicate
        assert (await mp.append("order-1", message)).duplicate
        first, second = telemetry.named("append order")
        assert "messaging.milepost.duplicate" not in (first.attributes or {})
        assert (second.attributes or {})["messaging.milepost.duplicate"] is True

    async def test_a_full_message_can_still_be_appended(self, make_mp: MakeMilepost, telemetry: Telemetry) -> None:
        async with telemetry.instrument(make_mp(max_message_bytes=100)) as mp:
            await mp.append("order-1", NewMessage("placed", "x" * 98))
            assert len(await metadata_of(mp, "order-1")) == 1

    async def test_the_context_follows_into_blocking_calls(
        self, make_mp: MakeMilepost, database_url: str, telemetry: Telemetry
    ) -> None:
        mp = telemetry.instrument(make_mp())

        def work() -> None:
            with mp.sync, telemetry.tracer.start_as_current_span("request"):
                mp.sync.append("order-1", NewMessage("placed"))
                with psycopg.connect(database_url) as connection:
                    mp.sync.append("order-1", NewMessage("paid"), connection=connection)

        await asyncio.to_thread(work)
        assert all(is_child(span, telemetry.one("request")) for span in telemetry.named("append order"))
        assert len(telemetry.named("append order")) == 2


class TestCalls:
    async def test_a_handler_continues_the_trace_of_its_message(self, mp: Milepost, telemetry: Telemetry) -> None:
        @mp.subscription("invoices", category="order")
        async def handle(message: Message[Any], context: Context) -> None:
            with telemetry.tracer.start_as_current_span("work"):
                await asyncio.sleep(0)

        with telemetry.tracer.start_as_current_span("request"):
            await mp.append("order-42", NewMessage("placed", metadata={"correlation_id": "c1"}))
        await mp.run_until_idle()
        [message] = [message async for message in mp.read("order-42")]
        append, process = telemetry.one("append order"), telemetry.one("process order")
        assert is_child(process, append)
        assert [link.context.span_id for link in process.links] == [context_of(append).span_id]
        assert is_child(telemetry.one("work"), process)
        assert process.kind is SpanKind.CONSUMER
        assert process.status.status_code is StatusCode.UNSET
        assert dict(process.attributes or {}) == {
            "messaging.system": "milepost",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": "order",
            "messaging.destination.subscription.name": "invoices",
            "messaging.consumer.group.name": "default",
            "messaging.message.id": str(message.id),
            "messaging.message.envelope.size": message.size,
            "messaging.message.conversation_id": "c1",
            "messaging.milepost.message.type": "placed",
            "messaging.milepost.message.stream": "order-42",
            "messaging.milepost.message.version": 1,
            "messaging.milepost.message.position": message.position,
            "messaging.milepost.message.attempt": 1,
            **server(mp),
        }

    async def test_a_chain_over_two_programs(self, make_mp: MakeMilepost) -> None:
        shop, billing = Telemetry(), Telemetry()
        async with (
            shop.instrument(make_mp(group="shop")) as one,
            billing.instrument(make_mp(group="billing")) as two,
        ):

            @one.subscription("orders", category="order")
            async def order(message: Message[Any]) -> None:
                await one.append("invoice-1", NewMessage("due"))

            @two.subscription("invoices", category="invoice")
            async def invoice(message: Message[Any], tx: Transaction) -> None:
                await tx.append("letter-1", NewMessage("sent"))

            @one.subscription("letters", category="letter")
            def letter(message: Message[Any]) -> None:
                one.sync.append("archive-1", NewMessage("kept"))

            await one.append("order-1", NewMessage("placed"))
            await one.run_until_idle()
            await two.run_until_idle()
            await one.run_until_idle()
        chain = [
            shop.one("append order"),
            shop.one("process order"),
            shop.one("append invoice"),
            billing.one("process invoice"),
            billing.one("append letter"),
            shop.one("process letter"),
            shop.one("append archive"),
        ]
        assert all(is_child(span, parent) for parent, span in pairwise(chain))

    async def test_messages_without_a_context_begin_a_trace(self, mp: Milepost, telemetry: Telemetry) -> None:
        @mp.subscription("all", category="order")
        async def handle(message: Message[Any]) -> None: ...

        append = qualified("select {}.append('order-1', 'placed', '1', '{{}}', %(metadata)s::jsonb)", mp)
        for metadata in ("{}", '{"traceparent": 7}', '{"traceparent": "nonsense"}', '{"tracestate": "a=1"}'):
            await mp.log.database.execute(append, {"metadata": metadata})
        with telemetry.tracer.start_as_current_span("startup"):
            await mp.run_until_idle()
        spans = telemetry.named("process order")
        assert [(span.parent, span.links) for span in spans] == [(None, ())] * 4
        assert len({context_of(span).trace_id for span in spans}) == 4

    async def test_a_context_that_is_too_long_is_none(self, mp: Milepost, telemetry: Telemetry) -> None:
        """Whoever may append could have each worker read it for hours."""

        @mp.subscription("all", category="order", lanes=1)
        async def handle(message: Message[Any]) -> None: ...

        parent = f"00-{'1' * 32}-{'2' * 16}-01"
        state, long = "a=1", f"a=1{' ' * 1000}b=2"
        for metadata in (
            {"traceparent": parent, "tracestate": state},
            {"traceparent": parent, "tracestate": long},
            {"traceparent": f"{parent}{' ' * 1000}"},
        ):
            await mp.append("order-1", NewMessage("placed", metadata=metadata))
        await mp.run_until_idle()
        with_state, without_state, without_any = [
            next(iter(span.links), None) for span in telemetry.named("process order")
        ]
        assert with_state is not None
        assert with_state.context.trace_state.to_header() == state
        assert without_state is not None
        assert without_state.context.trace_id == with_state.context.trace_id
        assert not without_state.context.trace_state
        assert without_any is None

    async def test_batches_have_links(self, mp: Milepost, telemetry: Telemetry) -> None:
        @mp.subscription("batches", category="order", batch=10, lanes=1)
        async def handle(messages: list[Message[Any]]) -> None: ...

        for number in range(3):
            await mp.append(f"order-{number}", NewMessage("placed", number))
        await mp.run_until_idle()
        [process] = telemetry.named("process order")
        appends = telemetry.named("append order")
        assert process.parent is None
        assert (process.attributes or {})["messaging.batch.message_count"] == 3
        assert sorted(link.context.span_id for link in process.links) == sorted(
            context_of(append).span_id for append in appends
        )
        positions = [(link.attributes or {})["messaging.milepost.message.position"] for link in process.links]
        assert sorted(positions) == [1, 2, 3]  # type: ignore[type-var]

    async def test_many_threads_each_in_their_own_span(self, mp: Milepost, telemetry: Telemetry) -> None:
        seen: dict[int, tuple[int, int]] = {}

        @mp.subscription("plain", category="order", concurrency=5)
        def handle(message: Message[Any]) -> None:
            with telemetry.tracer.start_as_current_span("work"):
                seen[message.position] = (
                    trace.get_current_span().get_span_context().trace_id,
                    threading.get_ident(),
                )

        appended: dict[int, int] = {}
        for number in range(30):
            with telemetry.tracer.start_as_current_span("request") as request:
                position = (await mp.append(f"order-{number}", NewMessage("placed"))).position
                appended[position] = request.get_span_context().trace_id
        await mp.run_until_idle()
        assert {position: found for position, (found, _) in seen.items()} == appended
        assert threading.get_ident() not in {thread for _, thread in seen.values()}
        processes = {context_of(span).span_id: span for span in telemetry.named("process order")}
        assert len(processes) == 30
        assert all(span.parent and span.parent.span_id in processes for span in telemetry.named("work"))

    async def test_handlers_that_wait_keep_their_own_span(self, mp: Milepost, telemetry: Telemetry) -> None:
        everybody = asyncio.Barrier(5)

        @mp.subscription("slow", category="order", concurrency=5)
        async def handle(message: Message[Any]) -> None:
            before = trace.get_current_span()
            await everybody.wait()
            assert trace.get_current_span() is before
            await mp.append(f"reply-{message.stream.partition('-')[2]}", NewMessage("reply"))

        for number in range(5):
            await mp.append(f"order-{number}", NewMessage("placed"))
        await mp.run_until_idle()
        parents = {context_of(span).span_id: span for span in telemetry.named("process order")}
        replies = telemetry.named("append reply")
        assert len({reply.parent.span_id for reply in replies if reply.parent} & parents.keys()) == 5
        assert not trace.get_current_span().is_recording()

    async def test_after_a_call_or_an_append_the_context_is_what_it_was(
        self, make_mp: MakeMilepost, telemetry: Telemetry
    ) -> None:
        left: list[trace.Span] = []

        class Outside:
            def handling(self, *_: object, **__: object) -> CallEnd:
                return lambda error: left.append(trace.get_current_span())

            def appending(self, *_: object, **__: object) -> AppendEnd:
                return lambda appended, error: left.append(trace.get_current_span())

        async with make_mp() as mp:
            mp.instrument(Outside())
            telemetry.instrument(mp)

            @mp.subscription("async", category="order")
            async def on_the_loop(message: Message[Any]) -> None:
                await asyncio.sleep(0)

            @mp.subscription("plain", category="order")
            def in_a_thread(message: Message[Any]) -> None:
                raise Skip

            with telemetry.tracer.start_as_current_span("request") as request:
                await mp.append("order-1", NewMessage("placed"))
                assert left == [request]
            await mp.run_until_idle()
        assert [span.get_span_context().is_valid for span in left[1:]] == [False, False]

    async def test_what_became_of_messages(self, mp: Milepost, telemetry: Telemetry) -> None:
        @mp.subscription("choosy", category="order", retry=Retry.never)
        async def handle(message: Message[Any]) -> None:
            match message.data:
                case 0:
                    raise Park("not now")
                case 1:
                    raise Skip("never")
                case 2:
                    raise RetryLater(600)
                case 3:
                    raise ValueError("no such customer")

        for number in range(4):
            await mp.append(f"order-{number}", NewMessage("placed", number))
        await mp.run_until_idle(errors="park")
        spans = {
            (span.attributes or {})["messaging.milepost.message.stream"]: span
            for span in telemetry.spans
            if span.kind is SpanKind.CONSUMER
        }
        found = [
            (
                span.status.status_code,
                (span.attributes or {}).get("messaging.milepost.outcome"),
                (span.attributes or {}).get("error.type"),
            )
            for _, span in sorted(spans.items())
        ]
        assert found == [
            (StatusCode.UNSET, "parked", None),
            (StatusCode.UNSET, "skipped", None),
            (StatusCode.UNSET, "retried", None),
            (StatusCode.ERROR, None, "ValueError"),
        ]
        failed = spans["order-3"]
        assert failed.status.description == "no such customer"
        assert [event.name for event in failed.events] == ["exception"]

    async def test_exactly_once(self, mp: Milepost, telemetry: Telemetry) -> None:
        @mp.subscription("once", category="order", lanes=1)
        async def handle(message: Message[Any], tx: Transaction) -> None:
            await tx.append(f"receipt-{message.version}", [NewMessage("due"), NewMessage("paid")])

        await mp.append("order-1", [NewMessage("placed"), NewMessage("paid")])
        await mp.run_until_idle()
        processes, receipts = telemetry.named("process order"), telemetry.named("append receipt")
        assert len(processes) == len(receipts) == 2
        for process, receipt in zip(processes, receipts, strict=True):
            assert is_child(process, telemetry.one("append order"))
            assert is_child(receipt, process)
        for number, receipt in enumerate(receipts, start=1):
            [first, second] = await metadata_of(mp, f"receipt-{number}")
            assert first == second
            assert f"{context_of(receipt).span_id:016x}" in first["traceparent"]
        # They are sent by the commit, if it comes to that: nobody counts them before.
        assert telemetry.value("messaging.client.sent.messages") == 2

    async def test_a_call_whose_time_is_up(self, mp: Milepost, telemetry: Telemetry) -> None:
        @mp.subscription("slow", category="order", timeout=0.05, retry=Retry.never)
        async def handle(message: Message[Any]) -> None:
            await asyncio.Event().wait()

        await mp.append("order-1", NewMessage("placed"))
        await mp.run_until_idle(errors="park")
        span = telemetry.one("process order")
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes or {})["error.type"] == "asyncio.exceptions.CancelledError"

    async def test_nothing_is_recorded_where_nothing_is_sampled(self, make_mp: MakeMilepost) -> None:
        telemetry = Telemetry(sampler=ALWAYS_OFF)
        async with telemetry.instrument(make_mp()) as mp:

            @mp.subscription("all", category="order")
            async def handle(message: Message[Any]) -> None:
                assert trace.get_current_span().get_span_context().is_valid

            await mp.append("order-1", NewMessage("placed"))
            await mp.run_until_idle()
            [metadata] = await metadata_of(mp, "order-1")
        assert telemetry.spans == ()
        assert int(metadata["traceparent"].rpartition("-")[2], 16) & TraceFlags.SAMPLED == 0
        assert telemetry.value("milepost.messages.handled") == 1


class Broken(SpanProcessor):
    """Fails whenever it is asked."""

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        raise RuntimeError("the exporter is broken")

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("the exporter is broken")


class BrokenAtTheEnd(Broken):
    """Fails when a span has ended."""

    def on_start(self, span: Span, parent_context: Any = None) -> None: ...


@pytest.mark.parametrize("processor", [Broken(), BrokenAtTheEnd()])
async def test_nothing_breaks_when_an_exporter_does(
    processor: SpanProcessor, mp: Milepost, telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    handled = []

    @mp.subscription("all", category="order")
    async def handle(message: Message[Any]) -> None:
        handled.append(message.position)

    @mp.subscription("plain", category="order")
    def plain(message: Message[Any]) -> None:
        handled.append(message.position)

    telemetry.tracer_provider.add_span_processor(processor)
    for number in range(10):
        await mp.append(f"order-{number}", NewMessage("placed"))
    report = await mp.run_until_idle()
    assert [tally.handled for tally in report.values()] == [10, 10]
    assert len(handled) == 20
    said = [record for record in caplog.records if record.name == "milepost.instruments"]
    assert [record.getMessage().partition(" when ")[0] for record in said] == ["an instrument failed"]
    assert not trace.get_current_span().is_recording()


ENDS = [f"milepost.messages.{how}" for how in ("handled", "parked", "skipped", "retried")]
"""Metrics of what comes of messages."""


class TestMetrics:
    async def test_everything_that_is_counted(self, mp: Milepost, telemetry: Telemetry) -> None:
        @mp.subscription("counted", category="order", lanes=4, retry=Retry(attempts=2, delay=600))
        async def handle(message: Message[Any]) -> None:
            match message.data:
                case 0:
                    raise Park("not now")
                case 1:
                    raise Skip("never")
                case 2:
                    raise ValueError

        for number in range(10):
            await mp.append(f"order-{number}", NewMessage("placed", number))
        async with mp.running(), asyncio.timeout(60):
            while sum(map(telemetry.value, ENDS)) < 10:
                await asyncio.sleep(0.01)
            assert telemetry.value("milepost.lanes.held") == 4
            assert telemetry.value("milepost.messages.in_flight") == 0
        of = {
            "messaging__destination__subscription__name": "counted",
            "messaging__consumer__group__name": "default",
        }
        assert telemetry.value("milepost.messages.handled", **of) == 7
        assert telemetry.value("milepost.messages.parked", **of) == 1
        assert telemetry.value("milepost.messages.skipped", **of) == 1
        assert telemetry.value("milepost.attempts.failed", **of) == 1
        assert telemetry.value("milepost.messages.retried", **of) == 1
        assert telemetry.value("milepost.lanes.lost", **of) == 0
        assert telemetry.value("milepost.lanes.held", **of) == 0
        assert telemetry.value("messaging.client.consumed.messages", **of) == 10
        assert telemetry.value("messaging.client.sent.messages", messaging__destination__name="order") == 10
        assert telemetry.value("messaging.client.operation.duration").count == 10
        failed = telemetry.value("messaging.process.duration", error__type="ValueError", **of)
        assert failed.count == 1
        durations = telemetry.metrics()["messaging.process.duration"]
        assert sum(point.count for point in durations) == 10

    async def test_what_consumers_do_is_counted(self, mp: Milepost, telemetry: Telemetry) -> None:
        @mp.subscription("handled", category="order", lanes=1)
        async def handle(message: Message[Any]) -> None: ...

        await mp.create_subscription("shipping")
        await orders(mp, 4)
        async with mp.consumer("shipping") as consumer:
            await mp.run_until_idle()
            *done, parked = await take(consumer, 4)
            await ack(done)
            await parked.park("not now")
        of = {
            "messaging__destination__subscription__name": "shipping",
            "messaging__consumer__group__name": "default",
        }
        assert telemetry.value("milepost.messages.handled", **of) == 3
        assert telemetry.value("milepost.messages.parked", **of) == 1
        of["messaging__destination__subscription__name"] = "handled"
        assert telemetry.value("milepost.messages.handled", **of) == 4

    async def test_lag_is_asked_when_it_is_collected(
        self, mp: Milepost, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("milepost.contrib.gauges.GAUGES_TIMEOUT_SECONDS", 60)
        go_on = asyncio.Event()

        @mp.subscription("slow", category="order", lanes=1)
        async def handle(message: Message[Any]) -> None:
            await go_on.wait()

        assert "milepost.lag.positions" not in telemetry.metrics()
        async with mp.running():
            for number in range(3):
                await mp.append("order-1", NewMessage("placed", number))
            found = await asyncio.to_thread(telemetry.metrics)
            assert [point.value for point in found["milepost.lag.positions"]] == [3]
            [seconds] = found["milepost.lag.time"]
            assert 0 < seconds.value < 60
            states = {
                point.attributes["messaging.milepost.delivery.state"]: point.value
                for point in found["milepost.deliveries"]
            }
            assert states == {"retrying": 0, "waiting": 0, "parked": 0, "unrouted": 0}
            go_on.set()
        assert "milepost.lag.positions" not in telemetry.metrics()

    async def test_who_holds_the_horizon(
        self, mp: Milepost, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("milepost.contrib.gauges.GAUGES_TIMEOUT_SECONDS", 60)
        monkeypatch.setattr("milepost.contrib.gauges.GAUGES_FRESH_SECONDS", 0.0)

        @mp.subscription("orders", category="order", lanes=1)
        async def handle(message: Message[Any]) -> None: ...

        async with mp.running(), mp.log.database.connection() as holder:
            async with holder.transaction():
                await mp.append("order-1", NewMessage("placed"), connection=holder)
                found = await asyncio.to_thread(telemetry.metrics)
                [point] = found["milepost.log.horizon.held.time"]
            assert 0 < point.value < 60
            assert point.attributes["messaging.milepost.horizon.holder"] == str(holder.info.backend_pid)
            assert "milepost.log.horizon.held.time" not in await asyncio.to_thread(telemetry.metrics)

    async def test_lanes_that_read_no_further(
        self, mp: Milepost, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("milepost.contrib.gauges.GAUGES_TIMEOUT_SECONDS", 60)

        @mp.subscription("orders", category="order", lanes=1, max_waiting=2)
        async def handle(message: Message[Any]) -> None:
            raise Park("not now")

        async with mp.running(), asyncio.timeout(60):
            await mp.append("order-1", [NewMessage("placed") for _ in range(5)])
            while (await mp.manage("orders").info()).status != "stopped":
                await asyncio.sleep(0.02)
            [point] = (await asyncio.to_thread(telemetry.metrics))["milepost.lanes.stopped"]
        assert point.value == 1
        assert point.attributes["messaging.milepost.limit"] == "max_waiting"
        assert point.attributes["messaging.milepost.limit.cause"] == "key 'order-1'"


async def test_two_programs_of_a_process(make_mp: MakeMilepost, telemetry: Telemetry) -> None:
    async with make_mp(group="one") as one, make_mp(group="two") as two:
        await one.append("order-1", NewMessage("placed"))
        for mp in (one, two):
            telemetry.instrument(mp)

            @mp.subscription("same", category="order")
            async def handle(message: Message[Any]) -> None: ...

            await mp.run_until_idle()
    for group in ("one", "two"):
        of = {"messaging__consumer__group__name": group, "messaging__destination__subscription__name": "same"}
        assert telemetry.value("milepost.messages.handled", **of) == 1
        assert telemetry.value("messaging.client.consumed.messages", **of) == 1
        assert telemetry.value("messaging.process.duration", **of).count == 1


async def test_to_instrument_twice_is_to_do_it_once(mp: Milepost, telemetry: Telemetry) -> None:
    telemetry.instrument(mp)
    await mp.append("order-1", NewMessage("placed"))
    assert len(telemetry.spans) == 1


def test_without_the_package_it_says_what_to_install(tmp_path: Path) -> None:
    program = "import sys; sys.modules['opentelemetry'] = None; import milepost.contrib.opentelemetry"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert 'pip install "milepost[opentelemetry]"' in ended.stderr


def server(mp: Milepost) -> dict[str, Any]:
    """What the address of the database says."""
    found = psycopg.conninfo.conninfo_to_dict(mp.url)
    port = {"server.port": int(str(found["port"]))} if found.get("port") else {}
    return {"server.address": found["host"], **port} if found.get("host") else {}
