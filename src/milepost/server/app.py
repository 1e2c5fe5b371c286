"""The server as an application: to be run by `milepost serve`, or within another application."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import get_args

from milepost.app import Milepost
from milepost.server import follow, health
from milepost.server.access.authentication import AccessMode, Authenticator, TokenCache
from milepost.server.access.tokens import TokenStore
from milepost.server.http.asgi import Application
from milepost.server.http.body import WorkTurns
from milepost.server.http.guard import RequestGuard
from milepost.server.http.origin import LOCAL_NAMES, TrustedProxies, server_url
from milepost.server.http.traffic import ServerTraffic
from milepost.server.limits import Limits
from milepost.server.mount import PagesFactory, PagesMount, ServerParts
from milepost.server.routes import ApiApplication, describe_api
from milepost.server.shutdown import Shutdown
from milepost.server.websocket.endpoint import ConsumerEndpoint
from milepost.server.websocket.registry import ConnectionRegistry


class Server(RequestGuard):
    """An ASGI application; `create_app` makes one."""

    def __init__(
        self,
        mp: Milepost,
        *,
        access: AccessMode,
        hosts: Collection[str] | None,
        limits: Limits,
        proxies: TrustedProxies,
        pages: PagesFactory | None = None,
    ) -> None:
        self.limits = limits
        self.shutdown = Shutdown()
        token_cache = TokenCache(partial(TokenStore, mp))
        authenticator = Authenticator(access, token_cache)
        self.traffic = ServerTraffic()
        turns = WorkTurns()
        self.connections = ConnectionRegistry(mp, limits, authenticator, self.shutdown, self.traffic, turns)
        given = {
            "mp": mp,
            "limits": limits,
            "shutdown": self.shutdown,
            "authenticator": authenticator,
            "connections": self.connections,
            "followers": follow.FollowerLimit(limits),
            "readiness": health.Readiness(mp, self.shutdown),
            "description": describe_api(asks_for_tokens=access == "tokens"),
        }
        site = None
        if pages is not None:
            served = ServerParts(
                mp=mp, authenticator=authenticator, token_cache=token_cache, shutdown=self.shutdown
            )
            site = pages(served)

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            async with mp, self.connections.running(), nullcontext() if site is None else site.running():
                yield

        inner: Application = ApiApplication(given, running)
        if site is not None:
            inner = PagesMount(site, inner)
        endpoint = ConsumerEndpoint(self.connections, authenticator, limits)
        super().__init__(
            inner, endpoint, limits, self.traffic, turns, hosts=hosts, local=access == "local", proxies=proxies
        )


def create_app(
    mp: Milepost,
    *,
    access: AccessMode = "tokens",
    hosts: Collection[str] | None = None,
    limits: Limits | None = None,
    advertise: str | None = None,
    pages: PagesFactory | None = None,
    trusted_proxies: Collection[str] = (),
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
        trusted_proxies: Addresses or networks of proxies that are believed, in the headers `Forwarded`, or
            `X-Forwarded-For` and `X-Forwarded-Proto`, from where a request comes and whether it was encrypted.
            Defaults to none.
    """
    if access not in get_args(AccessMode):
        raise ValueError(f'access: "tokens", "local" or "open" is wanted, not {access!r}')
    if advertise is not None:
        mp.node = server_url(advertise)
    return Server(
        mp,
        access=access,
        hosts=LOCAL_NAMES if hosts is None and access == "local" else hosts,
        limits=limits or Limits.of(mp.settings["max_message_bytes"].value),
        pages=pages,
        proxies=TrustedProxies(trusted_proxies),
    )
