"""Health and readiness of a server, and its metrics for Prometheus."""

import asyncio
from itertools import chain, groupby
from time import monotonic

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from litestar.openapi import ResponseSpec
from msgspec import UNSET, UnsetType

from milepost.app import Milepost
from milepost.contrib.gauges import SubscriptionGauges, read_gauges
from milepost.errors import MilepostError
from milepost.log.protocol import HeldBack
from milepost.server.access.permissions import TokenRole
from milepost.server.access.scope_guard import ScopeGuard, ScopeRule
from milepost.server.follow import FollowerLimit
from milepost.server.http.handlers import operation
from milepost.server.nodes import NODE_HEADER
from milepost.server.shutdown import Shutdown
from milepost.server.websocket.registry import ConnectionRegistry

READINESS_TIMEOUT_SECONDS = 3.0
"""Seconds for the database to answer."""
READINESS_FRESH_SECONDS = 1.0
"""Seconds for which an answer about the database serves all who ask."""


class HeldHorizon(msgspec.Struct, frozen=True):
    """What a transaction that stays open keeps from everybody who follows the log."""

    held_positions: int
    """How many positions wait."""
    held_seconds: float
    """The age of the transaction."""
    held_by: str
    """Its `pid …`; who that is, and what ends it, is told to those who have a token."""


class Health(msgspec.Struct, frozen=True):
    """Whether all is well."""

    status: str
    """`ok` or `unavailable`."""
    reasons: list[str]
    """Why it is not."""
    horizon: HeldHorizon | UnsetType = UNSET
    """There only while somebody holds the horizon for longer than a second. The server is ready all the same."""


class Readiness:
    """Whether the server can serve: it is not being stopped, and the database answers."""

    def __init__(self, mp: Milepost, shutdown: Shutdown) -> None:
        self._mp = mp
        self._shutdown = shutdown
        self._asking = asyncio.Lock()
        self._asked = float("-inf")
        self._problem: str | None = None
        self.held: HeldHorizon | UnsetType = UNSET
        """Who holds the horizon, as of the last question whether the database answers."""

    async def problem(self) -> str | None:
        """What keeps it from that."""
        if self._shutdown.has_begun:
            return "the server is being stopped"
        async with self._asking:
            if monotonic() - self._asked > READINESS_FRESH_SECONDS:
                self._problem = await self._ask()
                self._asked = monotonic()
        return self._problem

    async def _ask(self) -> str | None:
        try:
            async with asyncio.timeout(READINESS_TIMEOUT_SECONDS):
                await self._mp.head()
                self.held = _held_horizon(await self._mp.log.held_back())
        except (MilepostError, TimeoutError):
            # Why is for the log: whoever asks here has shown no token.
            return "the database does not answer"
        return None


def _held_horizon(held: HeldBack) -> HeldHorizon | UnsetType:
    if not held.lasting:
        return UNSET
    return HeldHorizon(held.positions, round(held.seconds, 3), held.lasting[0].name)


@get("/healthz", operation_id="healthz", opt=operation(None))
async def healthz(connections: NamedDependency[ConnectionRegistry]) -> Response[Health]:
    """The server lives; a header tells which one it is."""
    return Response(Health("ok", []), headers={NODE_HEADER: connections.id})


@get(
    "/readyz",
    operation_id="readyz",
    opt=operation(None),
    responses={503: ResponseSpec(Health, description="It is not ready.", generate_examples=False)},
)
async def readyz(readiness: NamedDependency[Readiness]) -> Response[Health]:
    """The server is not being stopped, and its database answers; 503 says what is wrong.

    A transaction that holds the horizon is told of with 200: another server could do nothing about it either.
    """
    problem = await readiness.problem()
    if problem is None:
        return Response(Health("ok", [], readiness.held))
    return Response(Health("unavailable", [problem]), status_code=503)


@get(
    "/metrics",
    operation_id="metrics",
    opt=operation(TokenRole.READ, scope_rule=ScopeRule.ITSELF),
    media_type="text/plain",
)
async def prometheus_metrics(
    mp: NamedDependency[Milepost],
    scope_guard: NamedDependency[ScopeGuard],
    connections: NamedDependency[ConnectionRegistry],
    followers: NamedDependency[FollowerLimit],
) -> Response[bytes]:
    """How the log and every subscription stand, and what this server does, as Prometheus reads it.

    With a token that has a scope, the subscriptions are those that are within it.
    """
    from milepost.contrib.prometheus import CONTENT_TYPE_LATEST, MetricsSnapshot, families, text
    from milepost.server import metrics

    outlook = await read_gauges(mp)
    sees = await scope_guard.visible_subscriptions()
    found = [info for info in await mp.subscriptions() if sees(info.group, info.name)]
    infos = sorted(found, key=lambda info: info.group)
    own = mp.settings["group"].value
    snapshots = [MetricsSnapshot(own, log=None if outlook is None else outlook.log)]
    for group, of_group in groupby(infos, key=lambda info: info.group):
        snapshots.append(MetricsSnapshot(group, subscriptions=tuple(map(SubscriptionGauges.of, of_group))))
    own_traffic = metrics.traffic_families(
        connections.traffic,
        sees,
        consumers=connections.consumers(),
        away=len(connections.kept_consumers),
        followers=followers.count,
    )
    return Response(text(chain(families(snapshots), own_traffic)), media_type=CONTENT_TYPE_LATEST)


HANDLERS = (
    healthz,
    readyz,
    prometheus_metrics,
)
