"""The traffic of this server as Prometheus collects it."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from milepost.server.access.reach import Sees
from milepost.server.traffic import Address, Traffic


def families(
    traffic: Traffic, sees: Sees, *, consumers: Mapping[Address, int], away: int, followers: int
) -> Iterator[Metric]:
    """What there is to say: besides what is counted, who is connected now, and who is waited for.

    Figures of a subscription are only there if `sees` returns True for it.
    """
    yield _connections(traffic, sum(consumers.values()), away, followers)
    yield _connected(consumers, sees)
    yield _requests(traffic)
    yield from _deliveries(traffic, sees)
    yield _ended(traffic)


def _connections(traffic: Traffic, consumers: int, away: int, followers: int) -> Metric:
    gauge = GaugeMetricFamily("milepost_server_connections", "Open connections of this server.", labels=("kind",))
    kinds = {"http": traffic.connections, "follower": followers, "consumer": consumers, "away": away}
    for kind, count in kinds.items():
        gauge.add_metric((kind,), count)
    return gauge


def _connected(consumers: Mapping[Address, int], sees: Sees) -> Metric:
    gauge = GaugeMetricFamily(
        "milepost_server_consumers", "Consumers that are connected here.", labels=("group", "subscription")
    )
    for address, count in consumers.items():
        if sees(*address):
            gauge.add_metric(address, count)
    return gauge


def _requests(traffic: Traffic) -> Metric:
    counter = CounterMetricFamily(
        "milepost_server_requests", "Requests that were answered.", labels=("method", "route", "status")
    )
    for (method, route, status), count in traffic.requests.items():
        counter.add_metric((method, route, str(status)), count)
    return counter


def _deliveries(traffic: Traffic, sees: Sees) -> Iterator[Metric]:
    labels = ("group", "subscription")
    sent = CounterMetricFamily(
        "milepost_server_deliveries_sent", "Deliveries that went to consumers by WebSocket.", labels=labels
    )
    settled = CounterMetricFamily(
        "milepost_server_settlements",
        "Deliveries that consumers settled by WebSocket; refused: it was too late.",
        labels=(*labels, "outcome"),
    )
    for address, count in traffic.sent.items():
        if sees(*address):
            sent.add_metric(address, count)
    for (group, name, outcome), count in traffic.settled.items():
        if sees(group, name):
            settled.add_metric((group, name, outcome), count)
    yield from (sent, settled)


def _ended(traffic: Traffic) -> Metric:
    counter = CounterMetricFamily(
        "milepost_server_consumers_ended", "Connections of consumers that have ended.", labels=("reason",)
    )
    for reason, count in traffic.ended.items():
        counter.add_metric((reason,), count)
    return counter
