"""The server as an application: to be run by `milepost serve`, or within another application."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
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
from milepost.server.description import CONFIG, Description
from milepost.server.gate import Gate
from milepost.server.hosts import LOCAL_NAMES
from milepost.server.http import (
    deliveries,
    describing,
    filters,
    following,
    health,
    messages,
    pulling,
    subscriptions,
    tracing,
)
from milepost.server.http.admission import admit
from milepost.server.http.failing import on_error
from milepost.server.http.request import JsonRequest
from milepost.server.limits import Limits
from milepost.server.stopping import Stopping

PARTS: tuple[tuple[str, str, Sequence[Any]], ...] = (
    ("/v1", "messages", (*messages.HANDLERS, *following.HANDLERS, *tracing.HANDLERS)),
    ("/v1/subscriptions", "subscriptions", subscriptions.HANDLERS),
    ("/v1/subscriptions", "deliveries", deliveries.HANDLERS),
    ("/v1", "pulling", pulling.HANDLERS),
    ("/v1/filter", "filters", filters.HANDLERS),
    ("/", "health", (*health.HANDLERS, *describing.HANDLERS)),
)
"""What there is: paths, and what they are about."""


class Server(Gate):
    """An ASGI application; `create_app` makes one."""

    def __init__(self, mp: Milepost, *, access: Access, hosts: Collection[str] | None, limits: Limits) -> None:
        self.limits = limits
        self.stopping = Stopping()
        provided = {
            "mp": mp,
            "limits": limits,
            "stopping": self.stopping,
            "entrance": Entrance(access, Doorkeeper(partial(_tokens, mp))),
            "followers": following.Followers(limits),
            "readiness": health.Readiness(mp, self.stopping),
            "description": Description(
                partial(_litestar, mp, {}, openapi_config=CONFIG), asks_for_tokens=access == "tokens"
            ),
        }
        inner: Any = _litestar(mp, provided)
        super().__init__(inner, limits, hosts=hosts, local=access == "local")


def create_app(
    mp: Milepost,
    *,
    access: Access = "tokens",
    hosts: Collection[str] | None = None,
    limits: Limits | None = None,
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
    """
    if access not in get_args(Access):
        raise ValueError(f'access: "tokens", "local" or "open" is wanted, not {access!r}')
    return Server(
        mp,
        access=access,
        hosts=LOCAL_NAMES if hosts is None and access == "local" else hosts,
        limits=limits or Limits.of(mp.settings["max_message_bytes"].value),
    )


def _tokens(mp: Milepost) -> Tokens:
    return Tokens(mp.log.database, mp.settings["schema"].value)


PROVIDED = ("mp", "limits", "stopping", "entrance", "followers", "readiness", "description")
"""What handlers are given by these names."""


def _litestar(mp: Milepost, provided: Mapping[str, Any], openapi_config: OpenAPIConfig | None = None) -> Litestar:
    @asynccontextmanager
    async def opened(_: Litestar) -> AsyncIterator[None]:
        async with mp:
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
