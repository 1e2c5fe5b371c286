"""The server as an application: to be run by `milepost serve`, or within another application."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, get_args

from litestar import Litestar, Router
from litestar.datastructures import State
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig

from milepost.app import Milepost
from milepost.server.access.doorkeeper import Doorkeeper
from milepost.server.access.entrance import Access, Entrance
from milepost.server.access.tokens import Tokens
from milepost.server.beside import Beside, Pages, Served
from milepost.server.description import CONFIG, Description
from milepost.server.gate import Gate
from milepost.server.hosts import LOCAL_NAMES, address_of
from milepost.server.http import (
    consuming,
    deliveries,
    describing,
    filters,
    following,
    health,
    messages,
    nodes,
    pulling,
    subscriptions,
    tracing,
)
from milepost.server.http.admission import admit
from milepost.server.http.failing import on_error
from milepost.server.http.request import JsonRequest
from milepost.server.limits import Limits
from milepost.server.stopping import Stopping
from milepost.server.traffic import Traffic
from milepost.server.websocket.endpoint import Endpoint
from milepost.server.websocket.hall import Hall

PARTS: tuple[tuple[str, str, Sequence[Any]], ...] = (
    ("/v1", "messages", (*messages.HANDLERS, *following.HANDLERS, *tracing.HANDLERS)),
    ("/v1/subscriptions", "subscriptions", subscriptions.HANDLERS),
    ("/v1/subscriptions", "deliveries", (*deliveries.HANDLERS, *consuming.HANDLERS)),
    ("/v1", "pulling", pulling.HANDLERS),
    ("/v1/filter", "filters", filters.HANDLERS),
    ("/v1", "nodes", nodes.HANDLERS),
    ("/", "health", (*health.HANDLERS, *describing.HANDLERS)),
)
"""What there is: paths, and what they are about."""


class Server(Gate):
    """An ASGI application; `create_app` makes one."""

    def __init__(
        self,
        mp: Milepost,
        *,
        access: Access,
        hosts: Collection[str] | None,
        limits: Limits,
        pages: Pages | None = None,
    ) -> None:
        self.limits = limits
        self.stopping = Stopping()
        doorkeeper = Doorkeeper(partial(_tokens, mp))
        entrance = Entrance(access, doorkeeper)
        self.traffic = Traffic()
        self.hall = Hall(mp, limits, entrance, self.stopping, self.traffic)
        provided = {
            "mp": mp,
            "limits": limits,
            "stopping": self.stopping,
            "entrance": entrance,
            "hall": self.hall,
            "followers": following.Followers(limits),
            "readiness": health.Readiness(mp, self.stopping),
            "description": Description(
                partial(_litestar, mp, {}, openapi_config=CONFIG), asks_for_tokens=access == "tokens"
            ),
        }
        site = None
        if pages is not None:
            served = Served(mp=mp, entrance=entrance, doorkeeper=doorkeeper, stopping=self.stopping)
            site = pages(served)
        inner: Any = _litestar(mp, {**provided, "site": site})
        if site is not None:
            inner = Beside(site, inner)
        endpoint = Endpoint(self.hall, entrance, limits)
        super().__init__(inner, endpoint, limits, self.traffic, hosts=hosts, local=access == "local")


def create_app(
    mp: Milepost,
    *,
    access: Access = "tokens",
    hosts: Collection[str] | None = None,
    limits: Limits | None = None,
    advertise: str | None = None,
    pages: Pages | None = None,
) -> Server:
    """An ASGI application that gives a `Milepost` to programs without a database connection.

    It opens the `Milepost` when it starts, if whoever runs it says when that is. An application that it is mounted
    in often does not: open it there, with `async with mp`.

    Args:
        mp: What is served.
        access: "tokens" (the default) lets in who has a token of `milepost token make`; "local" whoever is on this
            machine, without one; "open" everybody, for an application that has a guard of its own before it.
        hosts: The names by which it may be asked. Defaults to those of this machine with access "local", and
            otherwise to any.
        limits: How much it bears. Defaults to what fits the size of messages.
        advertise: The URL at which other servers' clients reach this one. Without it, which is the default, they
            are not sent here, and wait where they are while this one serves the consumers of a subscription.
        pages: Pages for people at `/console`, such as `milepost.console.Console`. Defaults to none.
    """
    if access not in get_args(Access):
        raise ValueError(f'access: "tokens", "local" or "open" is wanted, not {access!r}')
    if advertise is not None:
        mp.node = address_of(advertise)
    return Server(
        mp,
        access=access,
        hosts=LOCAL_NAMES if hosts is None and access == "local" else hosts,
        limits=limits or Limits.of(mp.settings["max_message_bytes"].value),
        pages=pages,
    )


def _tokens(mp: Milepost) -> Tokens:
    return Tokens(mp.log.database, mp.settings["schema"].value)


PROVIDED = ("mp", "limits", "stopping", "entrance", "hall", "followers", "readiness", "description")
"""What handlers are given by these names."""


def _litestar(mp: Milepost, provided: Mapping[str, Any], openapi_config: OpenAPIConfig | None = None) -> Litestar:
    @asynccontextmanager
    async def opened(_: Litestar) -> AsyncIterator[None]:
        async with mp, AsyncExitStack() as stack:
            if (hall := provided.get("hall")) is not None:
                await stack.enter_async_context(hall.running())
            if (site := provided.get("site")) is not None:
                await stack.enter_async_context(site.running())
            yield

    return Litestar(
        [Router(path, route_handlers=handlers, tags=[about]) for path, about, handlers in PARTS],
        dependencies={name: _provider(provided.get(name)) for name in PROVIDED},
        exception_handlers={Exception: on_error},
        guards=[admit],
        lifespan=[opened],
        logging_config=None,
        openapi_config=openapi_config,
        request_class=JsonRequest,
        # The gate looks at that, while the body arrives.
        request_max_body_size=None,
        state=State(dict(provided)),
    )


def _provider(value: Any) -> Provide:
    return Provide(lambda: value, sync_to_thread=False)
