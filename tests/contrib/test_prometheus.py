"""What Prometheus collects of real programs, read as Prometheus reads it."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from engine.consuming.taking import ack, orders, take
from milepost import Message, Milepost, NewMessage, Park, Retry, Skip, Unavailable
from milepost.cli.run.reports import ProcessMetrics as ProcessMetrics
from milepost.contrib import gauges
from milepost.contrib.gauges import LogGauges, SubscriptionGauges
from milepost.contrib.prometheus import Metrics, instrument
from milepost.engine.observe.counters import HISTOGRAM_BOUNDS_SECONDS, SubscriptionCounters
from milepost.engine.observe.events import Stopped
from support import MakeMilepost

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(text: bytes) -> Samples:
    """The samples of a text: no two may be the same."""
    found: Samples = {}
    for family in text_string_to_metric_families(text.decode()):
        assert family.documentation
        assert family.type != "unknown"
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def value(samples: Samples, name: str, **labels: str) -> float:
    [found] = [each for (named, of), each in samples.items() if named == name and frozenset(labels.items()) <= of]
    return found


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


async def eventually(read: Callable[[], Samples], name: str, wanted: float, **labels: str) -> Samples:
    async with asyncio.timeout(60):
        while True:
            samples = await asyncio.to_thread(read)
            if any(named == name for named, _ in samples) and value(samples, name, **labels) == wanted:
                return samples
            await asyncio.sleep(0.02)


async def test_everything_of_a_program(
    make_mp: MakeMilepost, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "GAUGES_FRESH_SECONDS", 0.0)
    async with make_mp(group="billing") as mp:
        instrument(mp, registry)

        @mp.subscription("invoices", category="order", lanes=4, retry=Retry(attempts=2, delay=600))
        async def handle(message: Message[Any]) -> None:
            match message.data:
                case 0:
                    raise Park("not now")
                case 1:
                    raise Skip("never")
                case 2:
                    raise ValueError

        def look() -> Samples:
            return read(generate_latest(registry))

        assert {name for name, _ in look()} == {"milepost_build_info"}
        for number in range(10):
            await mp.append(f"order-{number}", NewMessage("placed", number))
        of = {"group": "billing", "subscription": "invoices"}
        async with mp.running():
            await eventually(look, "milepost_deliveries", 1, state="parked")
            await eventually(look, "milepost_deliveries", 1, state="retrying")
            found = await eventually(look, "milepost_lag_positions", 0)
        assert value(found, "milepost_messages_handled_total", **of) == 7
        assert value(found, "milepost_messages_skipped_total", **of) == 1
        assert value(found, "milepost_messages_parked_total", **of) == 1
        assert value(found, "milepost_messages_retried_total", **of) == 1
        assert value(found, "milepost_attempts_failed_total", **of) == 1
        assert value(found, "milepost_lanes_lost_total", **of) == 0
        assert value(found, "milepost_lanes_held", **of) == 4
        assert value(found, "milepost_handling_seconds_count", **of) == 8
        assert value(found, "milepost_handling_seconds_bucket", **of, le="60.0") == 8
        assert value(found, "milepost_handling_seconds_bucket", **of, le="+Inf") == 8
        assert value(found, "milepost_handling_seconds_sum", **of) > 0
        assert value(found, "milepost_lag_seconds", **of) == 0
        assert value(found, "milepost_messages_in_flight", **of) == 0
        assert value(found, "milepost_deliveries", **of, state="waiting") == 0
        assert value(found, "milepost_deliveries", **of, state="unrouted") == 0
        statuses = {
            status: value(found, "milepost_subscription_status", **of, status=status) for status in STATUSES
        }
        assert statuses == {"running": 1, "paused": 0, "stalled": 0, "stopped": 0, "waiting": 0}
        assert value(found, "milepost_log_horizon_position", group="billing") == 10
        assert value(found, "milepost_log_head_position", group="billing") == 10
        assert "milepost_log_horizon_held_seconds" not in {name for name, _ in found}
        after = await asyncio.to_thread(look)
        assert value(after, "milepost_lanes_held", **of) == 0
        assert value(after, "milepost_messages_handled_total", **of) == 7
        assert "milepost_lag_seconds" not in {name for name, _ in after}


STATUSES = ("running", "paused", "stalled", "stopped", "waiting")


async def test_lanes_that_read_no_further(mp: Milepost) -> None:
    """Those of one limit are one series, named by one key: there may be many keys."""

    @mp.subscription("orders", category="order", lanes=4, max_waiting=2)
    async def handle(message: Message[Any]) -> None:
        raise Park("not now")

    metrics = Metrics()
    metrics.add(mp)
    async with mp.running(), asyncio.timeout(60):
        for number in range(8):
            await mp.append(f"order-{number}", [NewMessage("placed") for _ in range(5)])
        while (await mp.manage("orders").info()).status != "stopped":
            await asyncio.sleep(0.02)
        found = read(await metrics.text())
    [(labels, lanes)] = [
        (dict(labels), n) for (name, labels), n in found.items() if name == "milepost_lanes_stopped"
    ]
    assert labels.pop("cause").startswith("key 'order-")
    assert labels == {"group": "default", "subscription": "orders", "limit": "max_waiting"}
    assert 1 <= lanes <= 4
    of = {"group": "default", "subscription": "orders"}
    assert value(found, "milepost_subscription_status", **of, status="stopped") == 1


async def test_lag_and_who_holds_the_horizon(mp: Milepost) -> None:
    go_on = asyncio.Event()

    @mp.subscription("slow", category="order", lanes=1)
    async def handle(message: Message[Any]) -> None:
        await go_on.wait()

    metrics = Metrics()
    metrics.add(mp)
    async with mp.running(), mp.log.database.connection() as holder:
        await mp.append("order-1", NewMessage("placed"))
        async with holder.transaction():
            await holder.execute("set application_name = 'a \"long\" report'")
            await mp.append("order-2", NewMessage("placed"), connection=holder)
            await mp.append("order-3", NewMessage("placed"))
            found = read(await metrics.text())
            assert value(found, "milepost_lag_positions") == 1
            assert 0 < value(found, "milepost_lag_seconds") < 60
            assert value(found, "milepost_log_horizon_position") == 1
            assert value(found, "milepost_log_head_position") == 3
            pid = str(holder.info.backend_pid)
            held = value(found, "milepost_log_horizon_held_seconds", pid=pid, application='a "long" report')
            assert held > 0
        found = read(await metrics.text())
        assert value(found, "milepost_lag_positions") == 3
        go_on.set()


class Rules:
    """The alerts of the guide, as far as they are of the form `max by (labels) (metric{labels}) > number`."""

    form = re.compile(
        r"max by \((?P<by>[^)]*)\) \((?P<metric>\w+)(\{(?P<of>[^}]*)\})?\) (?P<sign>>|==) (?P<limit>\d+)"
    )

    def __init__(self) -> None:
        guide = (Path(__file__).parents[2] / "docs/guides/observe.md").read_text()
        self.rules = dict(re.findall(r"- alert: (\w+).*\n\s+expr: (.*)", guide))

    def fires(self, alert: str, samples: Samples, *, later: float = 0.0) -> bool:
        """Whether it does, if what is a time had gone on for so many seconds."""
        match = self.form.fullmatch(self.rules[alert])
        assert match, self.rules[alert]
        of = dict(re.findall(r'(\w+)="([^"]*)"', match["of"] or ""))
        found = [(labels, each) for (name, labels), each in samples.items() if name == match["metric"]]
        for labels, _ in found:
            assert {*match["by"].split(", "), *of} <= dict(labels).keys()
        values = [each for labels, each in found if frozenset(of.items()) <= labels]
        if match["metric"].endswith("_seconds"):
            # What is 0 is not growing older.
            values = [each + later for each in values if each]
        limit = float(match["limit"])
        return any(each > limit if match["sign"] == ">" else each == limit for each in values)


async def test_the_alert_for_a_held_horizon_fires_and_the_one_for_lag_does_not(mp: Milepost) -> None:
    @mp.subscription("orders", category="order", lanes=1)
    async def handle(message: Message[Any]) -> None: ...

    rules, metrics = Rules(), Metrics()
    metrics.add(mp)
    async with mp.running(), mp.log.database.connection() as holder:
        await mp.append("order-1", NewMessage("placed"))
        async with asyncio.timeout(60):
            while (await mp.manage("orders").info()).lag.positions:
                await asyncio.sleep(0.02)
        async with holder.transaction():
            await mp.append("order-2", NewMessage("placed"), connection=holder)
            await mp.append("order-3", NewMessage("placed"))
            found = read(await metrics.text())
        after = read(await metrics.text())
    fired = {alert for alert in rules.rules if rules.fires(alert, found, later=400)}
    assert fired == {"MilepostHorizonHeld"}
    assert not rules.fires("MilepostHorizonHeld", found)
    assert not rules.fires("MilepostHorizonHeld", after, later=400)


async def test_each_alert_of_the_guide_fires(mp: Milepost) -> None:
    @mp.subscription("parking", category="order", lanes=1, max_waiting=1)
    async def park(message: Message[Any]) -> None:
        raise Park("not now")

    @mp.subscription("failing", category="order", lanes=1, stall_after=1, retry=Retry(delay=600))
    async def fail(message: Message[Any]) -> None:
        raise ValueError

    rules, metrics = Rules(), Metrics()
    metrics.add(mp)
    async with mp.running(), mp.log.database.connection() as holder, asyncio.timeout(60):
        for number in range(4):
            await mp.append(f"order-{number}", NewMessage("placed"))
        await mp.append("order-0", [NewMessage("placed") for _ in range(3)])
        while {info.status for info in await mp.subscriptions()} != {"stalled", "stopped"}:
            await asyncio.sleep(0.02)
        async with holder.transaction():
            await mp.append("order-9", NewMessage("placed"), connection=holder)
            found = read(await metrics.text())
    assert {alert for alert in rules.rules if rules.fires(alert, found, later=400)} == rules.rules.keys()
    assert len(rules.rules) == 5


HOSTILE = ['a"b', "a\\b", "a\nb", "a\\n", "{x}", "a%sb", " a ", "é\u2028ü", "a\tb", "#", "x" * 500, '\\"\n"\\']


async def test_hostile_names(make_mp: MakeMilepost) -> None:
    async with make_mp(group='g"\n\\') as mp:
        for name in HOSTILE:
            mp.subscription(name, category="order", lanes=1)(_nothing)
        metrics = Metrics()
        metrics.add(mp)
        await mp.append("order-1", NewMessage("placed"))
        async with mp.running():
            async with asyncio.timeout(60):
                while True:
                    found = read(await metrics.text())
                    handled = [
                        each for (name, _), each in found.items() if name == "milepost_messages_handled_total"
                    ]
                    # What is stored is read before what this process counts.
                    running = [
                        each
                        for (name, labels), each in found.items()
                        if name == "milepost_subscription_status" and ("status", "running") in labels
                    ]
                    if sum(handled) == sum(running) == len(HOSTILE):
                        break
                    await asyncio.sleep(0.02)
        for name in HOSTILE:
            of = {"group": 'g"\n\\', "subscription": name}
            assert value(found, "milepost_messages_handled_total", **of) == 1
            assert value(found, "milepost_subscription_status", **of, status="running") == 1


async def _nothing(message: Message[Any]) -> None: ...


async def test_on_the_programs_own_loop_the_answer_before_is_given(
    mp: Milepost, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "GAUGES_FRESH_SECONDS", 0.0)
    mp.subscription("all", category="order", lanes=1)(_nothing)
    instrument(mp, registry)
    async with mp.running(), asyncio.timeout(60):
        assert "milepost_lag_seconds" not in {name for name, _ in read(generate_latest(registry))}
        while "milepost_lag_seconds" not in {name for name, _ in read(generate_latest(registry))}:
            await asyncio.sleep(0.01)
        monkeypatch.setattr(gauges, "GAUGES_KEPT_SECONDS", 0.0)
        assert "milepost_lag_seconds" not in {name for name, _ in read(generate_latest(registry))}


async def test_a_loop_that_is_blocked_does_not_keep_others_waiting(
    mp: Milepost, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "GAUGES_TIMEOUT_SECONDS", 0.05)
    mp.subscription("all", category="order", lanes=1)(_nothing)
    instrument(mp, registry)
    async with mp.running():
        collected: list[bytes] = []
        thread = asyncio.get_running_loop().run_in_executor(
            None, lambda: collected.append(generate_latest(registry))
        )
        while not collected:
            # Not a single step of the loop: whoever asks has to give up by itself.
            pass
        await thread
    assert "milepost_lag_seconds" not in {name for name, _ in read(collected[0])}
    assert value(read(collected[0]), "milepost_messages_handled_total") == 0


async def test_a_subscription_that_is_deleted_takes_nothing_else_along(
    mp: Milepost, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "GAUGES_FRESH_SECONDS", 0.0)
    stopped = asyncio.Event()

    @mp.on_event
    def stop(event: Stopped) -> None:
        stopped.set()

    for name in ("stays", "goes"):
        mp.subscription(name, category="order", lanes=1)(_nothing)
    instrument(mp, registry)
    async with mp.running():
        await mp.manage("goes").delete()
        async with asyncio.timeout(60):
            await stopped.wait()
        found = read(await asyncio.to_thread(generate_latest, registry))
        assert value(found, "milepost_lag_positions") == value(
            found, "milepost_lag_positions", subscription="stays"
        )


async def test_two_programs_of_a_process(make_mp: MakeMilepost, registry: CollectorRegistry) -> None:
    async with make_mp(group="one") as one, make_mp(group="two") as two:
        for mp in (one, two):
            mp.subscription("same", category="order", lanes=1)(_nothing)
            assert instrument(mp, registry) is instrument(mp, registry)
        await one.append("order-1", NewMessage("placed"))
        await one.run_until_idle()
        await two.run_until_idle()
        found = read(generate_latest(registry))
        assert value(found, "milepost_messages_handled_total", group="one") == 1
        assert value(found, "milepost_messages_handled_total", group="two") == 1


async def test_a_process_with_consumers_only(
    make_mp: MakeMilepost, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "GAUGES_FRESH_SECONDS", 0.0)

    def look() -> Samples:
        return read(generate_latest(registry))

    async with make_mp(group="sales") as sales, make_mp(group="stock") as stock:
        for mp in (sales, stock):
            instrument(mp, registry)
            await mp.create_subscription("shipping", retry=Retry(delay=600))
        await orders(sales, 5)
        async with sales.consumer("shipping") as consumer:
            *done, failed, parked = await take(consumer, 5)
            await ack(done)
            async with failed:
                raise ValueError
            await parked.park("not now")
            found = await eventually(look, "milepost_lag_positions", 0, group="sales")
            assert value(found, "milepost_lanes_held", group="sales") == 1
        # Two programs have consumers of it, one after the other: it is one subscription.
        for mp in (sales, stock):
            async with mp.consumer("stock/shipping") as consumer:
                await ack(await take(consumer, 2))
        found = await asyncio.to_thread(look)
    assert value(found, "milepost_messages_handled_total", group="sales") == 3
    assert value(found, "milepost_attempts_failed_total", group="sales") == 1
    assert value(found, "milepost_messages_retried_total", group="sales") == 1
    assert value(found, "milepost_messages_parked_total", group="sales") == 1
    assert value(found, "milepost_handling_seconds_count", group="sales") == 4
    assert value(found, "milepost_lanes_held", group="sales") == 0
    assert value(found, "milepost_messages_handled_total", group="stock") == 4


@pytest.mark.parametrize("error", [Unavailable("away"), psycopg.errors.InsufficientPrivilege("not for you")])
async def test_what_is_not_known_is_left_out(
    error: Exception, mp: Milepost, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise error

    mp.subscription("all", category="order", lanes=1)(_nothing)
    metrics = instrument(mp, registry)
    monkeypatch.setattr(mp, "subscriptions", fail)
    async with mp.running():
        found = read(await metrics.text())
        assert found.keys() == read(await asyncio.to_thread(generate_latest, registry)).keys()
    assert value(found, "milepost_messages_handled_total") == 0
    assert "milepost_lag_seconds" not in {name for name, _ in found}


class TestProcesses:
    """Several processes of one program, added up."""

    def counted(self, subscription: str, handled: int, lanes: int) -> SubscriptionCounters:
        figures = SubscriptionCounters(subscription, handled=handled, lanes=lanes, seconds=handled * 0.002)
        figures.times[1] = handled
        return figures

    def test_sums_do_not_go_back_when_a_process_ends(self) -> None:
        metrics = ProcessMetrics("billing")
        metrics.record(1, self.counted("invoices", 5, 8))
        metrics.record(2, self.counted("invoices", 7, 8))
        metrics.record(2, self.counted("letters", 1, 4))
        metrics.record(2, self.counted("invoices", 9, 8))
        found = read(metrics.text())
        assert value(found, "milepost_messages_handled_total", subscription="invoices") == 14
        assert value(found, "milepost_lanes_held", subscription="invoices") == 16
        metrics.remove_process(2)
        metrics.remove_process(3)
        metrics.record(4, self.counted("invoices", 1, 2))
        found = read(metrics.text())
        assert value(found, "milepost_messages_handled_total", subscription="invoices") == 15
        assert value(found, "milepost_handling_seconds_count", subscription="invoices") == 15
        assert value(found, "milepost_handling_seconds_sum", subscription="invoices") == pytest.approx(0.03)
        assert value(found, "milepost_handling_seconds_bucket", subscription="invoices", le="0.001") == 0
        assert value(found, "milepost_handling_seconds_bucket", subscription="invoices", le="0.005") == 15
        assert value(found, "milepost_lanes_held", subscription="invoices") == 10
        assert value(found, "milepost_messages_handled_total", subscription="letters") == 1
        assert value(found, "milepost_lanes_held", subscription="letters") == 0

    def test_the_newest_word_on_how_things_stand_holds_for_a_while(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = 1000.0
        monkeypatch.setattr("milepost.cli.run.reports.monotonic", lambda: now)
        metrics = ProcessMetrics("billing")
        for process, lag in ((1, 5), (2, 3)):
            metrics.record(process, standing("invoices", lag))
            metrics.record(process, LogGauges(horizon=lag, head=lag))
        found = read(metrics.text())
        assert value(found, "milepost_lag_positions", group="billing", subscription="invoices") == 3
        assert value(found, "milepost_log_horizon_position", group="billing") == 3
        now += 31
        assert {name for name, _ in read(metrics.text())} == {"milepost_build_info"}


def standing(subscription: str, lag: int) -> SubscriptionGauges:
    return SubscriptionGauges(
        subscription=subscription,
        status="running",
        lag_positions=lag,
        lag_seconds=float(lag),
        in_flight=0,
        retrying=0,
        waiting=0,
        parked=0,
        unrouted=0,
    )


def test_bounds_ascend() -> None:
    assert list(HISTOGRAM_BOUNDS_SECONDS) == sorted(set(HISTOGRAM_BOUNDS_SECONDS))


def test_without_the_package_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['prometheus_client'] = None; import milepost.contrib.prometheus"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert 'pip install "milepost[prometheus]"' in ended.stderr
