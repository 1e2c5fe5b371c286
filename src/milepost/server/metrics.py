"""The traffic of this server as Prometheus collects it."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from milepost.server.access.scope_guard import SubscriptionVisibility
from milepost.server.http.traffic import ServerTraffic, SubscriptionAddress


def traffic_families(
    traffic: ServerTraffic,
    sees: SubscriptionVisibility,
    *,
    consumers: Mapping[SubscriptionAddress, int],
    away: int,
    followers: int,
) -> Iterator[Metric]:
    """What there is to say: besides what is counted, who is connected now, and who is waited for.

    Figures of a subscription are only there if `sees` returns True for it.
    """
    yield _connections_gauge(traffic, sum(consumers.values()), away, followers)
    yield _consumers_gauge(consumers, sees)
    yield _requests_counter(traffic)
    yield from _delivery_counters(traffic, sees)
    yield _ended_consumers_counter(traffic)


def _connections_gauge(traffic: ServerTraffic, consumers: int, away: int, followers: int) -> Metric:
    gauge = GaugeMetricFamily("milepost_server_connections", "Open connections of this server.", labels=("kind",))
    kinds = {"http": traffic.connections, "follower": followers, "consumer": consumers, "away": away}
    for kind, count in kinds.items():
        gauge.add_metric((kind,), count)
    return gauge


def _consumers_gauge(consumers: Mapping[SubscriptionAddress, int], sees: SubscriptionVisibility) -> Metric:
    gauge = GaugeMetricFamily(
        "milepost_server_consumers", "Consumers that are connected here.", labels=("group", "subscription")
    )
    for address, count in consumers.items():
        if sees(*address):
            gauge.add_metric(address, count)
    return gauge


def _requests_counter(traffic: ServerTraffic) -> Metric:
    counter = CounterMetricFamily(
        "milepost_server_requests", "Requests that were answered.", labels=("method", "route", "status")
    )
    for (method, route, status), count in traffic.requests.items():
        counter.add_metric((method, route, str(status)), count)
    return counter


def _delivery_counters(traffic: ServerTraffic, sees: SubscriptionVisibility) -> Iterator[Metric]:
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


def _ended_consumers_counter(traffic: ServerTraffic) -> Metric:
    counter = CounterMetricFamily(
        "milepost_server_consumers_ended", "Connections of consumers that have ended.", labels=("reason",)
    )
    for reason, count in traffic.ended.items():
        counter.add_metric((reason,), count)
    return counter
