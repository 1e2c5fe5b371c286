"""A subscription for consumers, and a server for them: within the test's process where that is enough."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from milepost import Milepost
from milepost.server import Limits, Server, create_app
from milepost.server.mount import PagesFactory
from milepost.server.process import ServerProcess, TlsCertificate, listen
from support import MakeMilepost


class Serving:
    """A server in this process, which has its own `Milepost`."""

    def __init__(self, app: Server, process: ServerProcess, running: asyncio.Task[None], address: str) -> None:
        self.app = app
        self.address = address
        self._process = process
        self._running = running

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def client(self, **options: Any) -> httpx.AsyncClient:
        """A client of it."""
        return httpx.AsyncClient(base_url=self.address, timeout=60, **options)

    def stop(self) -> None:
        """What SIGTERM does."""
        self._process.handle_exit(signal.SIGTERM, None)

    async def end(self) -> None:
        """Stops it, and waits for the end."""
        self.stop()
        self._process.force_exit = False
        await self._running


Serve = Callable[..., Any]
LONG = 60.0
"""Seconds for which a consumer is kept: however slow a machine is, whoever comes back is in time."""


@asynccontextmanager
async def serving(
    mp: Milepost,
    *,
    grace: float = 5,
    access: str = "local",
    advertise: str | None = None,
    pages: PagesFactory | None = None,
    tls: TlsCertificate | None = None,
    trusted_proxies: Sequence[str] = (),
    resume_seconds: float = LONG,
    **limits: Any,
) -> AsyncIterator[Serving]:
    """A server until the end of the block; unless a test says otherwise, it tells where it is."""
    with listen("127.0.0.1", 0) as listener:
        address = f"http{'s' if tls else ''}://127.0.0.1:{listener.getsockname()[1]}"
        told = advertise or address
        app = create_app(
            mp,
            access=access,  # type: ignore[arg-type]
            limits=Limits(**limits),
            advertise=told,
            pages=pages,
            trusted_proxies=trusted_proxies,
        )
        app.connections.resume_seconds = resume_seconds
        process = ServerProcess(app, grace=grace, tls=tls)
        running = asyncio.create_task(process._serve(sockets=[listener]))
        while not process.started:
            await asyncio.sleep(0.005)
        served = Serving(app, process, running, address)
        try:
            yield served
        finally:
            await served.end()


@pytest.fixture
async def shipping(mp: Milepost) -> str:
    """The address of a subscription that takes everything."""
    await mp.create_subscription("shipping", lease=30)
    return "default/shipping"


@pytest.fixture
async def serve(shipping: str, make_mp: MakeMilepost) -> AsyncIterator[Serve]:
    """Starts servers."""
    async with AsyncExitStack() as stack:

        async def start(**options: Any) -> Serving:
            return await stack.enter_async_context(serving(make_mp(), **options))

        yield start


@pytest.fixture
async def server(serve: Serve) -> Serving:
    """A server that asks for no token."""
    started: Serving = await serve()
    return started
