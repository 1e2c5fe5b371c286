"""The server as an application: to be run by `milepost serve`, or within another application."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import get_args

from milepost.app import Milepost
from milepost.server.access.doorkeeper import Doorkeeper
from milepost.server.access.entrance import Access, Entrance
from milepost.server.access.tokens import Tokens
from milepost.server.asgi import Application
from milepost.server.beside import Beside, Pages, Served
from milepost.server.gate import Gate
from milepost.server.hosts import LOCAL_NAMES, address_of
from milepost.server.http import following, health
from milepost.server.limits import Limits
from milepost.server.proxies import Proxies
from milepost.server.routes import Routes, description
from milepost.server.stopping import Stopping
from milepost.server.traffic import Traffic
from milepost.server.turns import Turns
from milepost.server.websocket.endpoint import Endpoint
from milepost.server.websocket.hall import Hall


class Server(Gate):
    """An ASGI application; `create_app` makes one."""

    def __init__(
        self,
        mp: Milepost,
        *,
        access: Access,
        hosts: Collection[str] | None,
        limits: Limits,
        proxies: Proxies,
        pages: Pages | None = None,
    ) -> None:
        self.limits = limits
        self.stopping = Stopping()
        doorkeeper = Doorkeeper(partial(_tokens, mp))
        entrance = Entrance(access, doorkeeper)
        self.traffic = Traffic()
        turns = Turns()
        self.hall = Hall(mp, limits, entrance, self.stopping, self.traffic, turns)
        given = {
            "mp": mp,
            "limits": limits,
            "stopping": self.stopping,
            "entrance": entrance,
            "hall": self.hall,
            "followers": following.Followers(limits),
            "readiness": health.Readiness(mp, self.stopping),
            "description": description(asks_for_tokens=access == "tokens"),
        }
        site = None
        if pages is not None:
            served = Served(mp=mp, entrance=entrance, doorkeeper=doorkeeper, stopping=self.stopping)
            site = pages(served)

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            async with mp, self.hall.running(), nullcontext() if site is None else site.running():
                yield

        inner: Application = Routes(given, running)
        if site is not None:
            inner = Beside(site, inner)
        endpoint = Endpoint(self.hall, entrance, limits)
        super().__init__(
            inner, endpoint, limits, self.traffic, turns, hosts=hosts, local=access == "local", proxies=proxies
        )


def create_app(
    mp: Milepost,
    *,
    access: Access = "tokens",
    hosts: Collection[str] | None = None,
    limits: Limits | None = None,
    advertise: str | None = None,
    pages: Pages | None = None,
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
        proxies=Proxies(trusted_proxies),
    )


def _tokens(mp: Milepost) -> Tokens:
    return Tokens(mp.log.database, mp.settings["schema"].value)
