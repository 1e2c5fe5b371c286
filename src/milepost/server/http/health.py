"""Whether the server is well, and what Prometheus collects."""

import asyncio
from itertools import chain, groupby
from time import monotonic

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from litestar.openapi import ResponseSpec
from msgspec import UNSET, UnsetType

from milepost.app import Milepost
from milepost.contrib.outlook import SubscriptionOutlook, outlook_of
from milepost.errors import MilepostError
from milepost.log.horizon import HeldBack
from milepost.server.access.reach import Reach, Within
from milepost.server.access.role import Role
from milepost.server.http.following import Followers
from milepost.server.http.operation import operation
from milepost.server.reaching import NODE
from milepost.server.stopping import Stopping
from milepost.server.websocket.hall import Hall

PATIENCE = 3.0
"""Seconds for the database to answer."""
FRESH = 1.0
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

    def __init__(self, mp: Milepost, stopping: Stopping) -> None:
        self._mp = mp
        self._stopping = stopping
        self._asking = asyncio.Lock()
        self._asked = float("-inf")
        self._problem: str | None = None
        self.held: HeldHorizon | UnsetType = UNSET
        """Who holds the horizon, as of the last question whether the database answers."""

    async def problem(self) -> str | None:
        """What keeps it from that."""
        if self._stopping.begun:
            return "the server is being stopped"
        async with self._asking:
            if monotonic() - self._asked > FRESH:
                self._problem = await self._ask()
                self._asked = monotonic()
        return self._problem

    async def _ask(self) -> str | None:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._mp.head()
                self.held = _held(await self._mp.log.horizon.held_back())
        except (MilepostError, TimeoutError):
            # Why is for the log: whoever asks here has shown no token.
            return "the database does not answer"
        return None


def _held(held: HeldBack) -> HeldHorizon | UnsetType:
    if not held.lasting:
        return UNSET
    return HeldHorizon(held.positions, round(held.seconds, 3), held.lasting[0].name)


@get("/healthz", operation_id="healthz", opt=operation(None))
async def healthz(hall: NamedDependency[Hall]) -> Response[Health]:
    """The server lives; a header tells which one it is."""
    return Response(Health("ok", []), headers={NODE: hall.id})


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


@get("/metrics", operation_id="metrics", opt=operation(Role.READ, within=Within.ITSELF), media_type="text/plain")
async def metrics(
    mp: NamedDependency[Milepost],
    reach: NamedDependency[Reach],
    hall: NamedDependency[Hall],
    followers: NamedDependency[Followers],
) -> Response[bytes]:
    """How the log and every subscription stand, and what this server does, as Prometheus reads it.

    With a token that has a scope, the subscriptions are those that are within it.
    """
    from milepost.contrib.prometheus import CONTENT_TYPE_LATEST, Snapshot, families, text
    from milepost.server import metrics

    outlook = await outlook_of(mp)
    sees = await reach.sees()
    found = [info for info in await mp.subscriptions() if sees(info.group, info.name)]
    infos = sorted(found, key=lambda info: info.group)
    own = mp.settings["group"].value
    snapshots = [Snapshot(own, log=None if outlook is None else outlook.log)]
    for group, of_group in groupby(infos, key=lambda info: info.group):
        snapshots.append(Snapshot(group, subscriptions=tuple(map(SubscriptionOutlook.of, of_group))))
    own_traffic = metrics.families(
        hall.traffic, sees, consumers=hall.consumers(), away=len(hall.away), followers=followers.count
    )
    return Response(text(chain(families(snapshots), own_traffic)), media_type=CONTENT_TYPE_LATEST)


HANDLERS = (
    healthz,
    readyz,
    metrics,
)
